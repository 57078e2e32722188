"""A training step of a Llama-style model: tokens/s, TFLOP/s and utilisation per device, each with its formula.

The ceiling that utilisation refers to is measured in the same run (see `windlass bench matmul`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from windlass.bench import measure
from windlass.bench.measure import Figure
from windlass.bench.options import option, to_argument
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import datasheet_tflops
from windlass.bench.runner import Bench, Part, PartResult
from windlass.bench.train.options import LlmOptions, llama_size
from windlass.bench.train.rows import decided_options, loss_remarks, row_of

# As in the published figures.
_SEQUENCE = {"llama2-7b": 4096, "llama2-13b": 4096, "llama3-8b": 8192}


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmCaseOptions(LlmOptions):
    """Options of the step and of the matmul load after it (0: no load)."""

    ceiling: float = option(3.0, "seconds of matmul load; 0: leave it out", metavar="S")


def usual_choices(asked: Mapping[str, Any], world_size: int) -> LlmCaseOptions:
    """Return the given options, with defaults for the others.

    The defaults are the published sequence length of the model and a parallel mode for this number of ranks.
    """
    model = asked.get("model", "tiny")
    parallel = "none" if world_size == 1 else "fsdp" if llama_size(model).parameters > 1e9 else "ddp"
    sequence = {"sequence": _SEQUENCE[model]} if model in _SEQUENCE else {}
    return LlmCaseOptions(**{"parallel": parallel, **sequence, **asked})


def run(bench: Bench) -> BenchRecord:
    usual_choices(bench.asked, 1)  # rejects invalid options before a plan is made
    nodes, ranks = bench.size()
    options = usual_choices(bench.asked, nodes * ranks)
    result = bench.run(part(options))
    rows = rows_of(result, options) if result else []
    bench.options |= decided_options(bench.results)
    return bench.record(rows, remarks=loss_remarks(bench.results))


def part(options: LlmCaseOptions, name: str = "llm", **size: int | None) -> Part:
    return Part(name=name, program="train", argument=to_argument(options, case="llm"), **size)


def rows_of(result: PartResult, options: LlmCaseOptions) -> list[Measurement]:
    row = row_of(result)
    if row is None:
        return []
    ceiling = next(iter(result.of_kind("ceiling")), None)
    device = str(result.about.get("device", {}).get("name", ""))
    return [with_utilisation(row, ceiling, datasheet_tflops(device, str(row.labels["precision"])))]


def with_utilisation(row: Measurement, ceiling: dict[str, Any] | None, datasheet_tflops: float | None) -> Measurement:
    """Return the row with its share of the ceiling measured in the same run and of the datasheet's, each named."""
    figures = dict(row.figures)
    achieved = figures["tflops_6n"].value
    if ceiling is not None:
        name = f"{ceiling['type']} matmul {ceiling['size']}, sustained, same run"
        figures["ceiling"] = Figure(value=float(ceiling["tflops"]), unit="TFLOP/s", formula=f"2*m*n*k, {name}")
        found = measure.utilisation(achieved, float(ceiling["tflops"]), ceiling=name)
        figures["utilisation_measured"] = _named(found)
    if datasheet_tflops:
        found = measure.utilisation(achieved, datasheet_tflops, ceiling=f"datasheet {datasheet_tflops:g} TFLOP/s")
        figures["utilisation_datasheet"] = _named(found)
    samples = dict(row.samples)
    return Measurement(labels=row.labels, samples=samples, figures=figures, wrong=row.wrong)


def _named(found: Figure) -> Figure:
    return replace(found, formula=found.formula.replace("achieved", "6*N*tokens"))
