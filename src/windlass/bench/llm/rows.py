"""`bench llm`: runs it, and makes its row with the share of the ceilings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from windlass.bench import measure
from windlass.bench.llm.options import LlmCaseOptions, usual_choices
from windlass.bench.measure import Figure
from windlass.bench.options import to_argument
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import datasheet_tflops
from windlass.bench.runner import Bench, Part, PartResult
from windlass.bench.train.rows import decided_options, loss_remarks, row_of


def run(bench: Bench) -> BenchRecord:
    usual_choices(bench.asked, 1)  # refuses what cannot be before a plan is made
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
    """The row with its share of the ceiling measured in the same run, and of the datasheet's, each by its name."""
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
