"""Rows and words of training runs: the language model, and what its tables and those of DDP share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windlass.bench import measure
from windlass.bench.records import BenchRecord, Figure, Label, Row, train_row
from windlass.bench.runner import Outcome
from windlass.bench.sizes import counted


def row_of(outcome: Outcome, **labels: Label) -> Row | None:
    """The row of one training launch, with the step times of all ranks (of the first alone where it did not get to its
    end); None where no step was measured."""
    told = last_told(outcome)
    if told is None:
        return None
    steps = sorted(outcome.of_kind("steps"), key=lambda told: int(told["rank"]))
    all_steps = tuple(float(value) for told in steps for value in told["step_s"])
    return train_row(told["record"], nodes=outcome.plan.nodes, step_s=all_steps or None, **labels)


def last_told(outcome: Outcome) -> dict[str, Any] | None:
    """The last that a launch told of its training: all of it, or what was measured until it was stopped."""
    trained = outcome.of_kind("train")
    return trained[-1] if trained else None


def options_of(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """What the ranks decided to do, in full: what was asked, and the defaults for the device."""
    decided = [told["record"]["options"] for outcome in outcomes if (told := last_told(outcome))]
    return dict(decided[0]) if decided else {}


def loss_remarks(outcomes: Iterable[Outcome]) -> list[str]:
    """What is wrong with losses, in words."""
    found = []
    for outcome in outcomes:
        told = last_told(outcome)
        if told is None:
            continue
        found += [f"{outcome.part.name}: {problem}" for problem in told["record"]["loss_problems"]]
        if not told.get("whole", True):
            steps = len(told["record"]["samples"]["step_s"])
            found.append(f"{outcome.part.name}: ended early; these are the first {counted(steps, 'step')} of rank 0")
    return found


def with_utilisation(row: Row, ceiling: dict[str, Any] | None, datasheet_tflops: float | None) -> Row:
    """The row with its share of the ceiling measured in the same run, and of the datasheet's, each by its name."""
    figures = dict(row.figures)
    achieved = figures["tflops_6n"].value
    if ceiling is not None:
        name = f"{ceiling['type']} matmul {ceiling['size']}, sustained, same run"
        figures["ceiling"] = Figure(value=float(ceiling["tflops"]), unit="TFLOP/s", formula=f"2*m*n*k, {name}")
        found = measure.utilisation(achieved, float(ceiling["tflops"]), ceiling=name)
        figures["utilisation_measured"] = _figure(found, "6*N*tokens")
    if datasheet_tflops:
        found = measure.utilisation(achieved, datasheet_tflops, ceiling=f"datasheet {datasheet_tflops:g} TFLOP/s")
        figures["utilisation_datasheet"] = _figure(found, "6*N*tokens")
    samples = dict(row.samples)
    return Row(labels=row.labels, samples=samples, figures=figures, wrong=row.wrong)


def _figure(found: measure.Figure, achieved: str) -> Figure:
    return Figure(value=found.value, unit=found.unit, formula=found.formula.replace("achieved", achieved))


def text(record: BenchRecord) -> str:
    """A few lines for each run: step, rate, utilisation, loss; the formula beside every figure."""
    return "\n".join(line for row in record.rows for line in _row_lines(row))


def _row_lines(row: Row) -> list[str]:
    label, figures = row.labels, row.figures
    steps = measure.spread(row.samples["step_s"])
    ranks = int(label["ranks"] or 1)
    shape = f"batch {label['batch']}" + (f" x sequence {label['sequence']}" if "sequence" in label else "")
    shape += f" x {label['accumulation']} accumulated" if "accumulation" in label else ""
    lines = [
        f"{label['model']} {label['precision']}, parallel {label['parallel']}, {counted(ranks, 'rank')} on "
        f"{counted(label['nodes'], 'node')}, {shape} per device",
        f"  step          {steps.median * 1e3:.2f} ms p50 "
        f"(n {steps.n}, {steps.low * 1e3:.2f} to {steps.high * 1e3:.2f}, cv {steps.cv:.1%})",
    ]
    for name, word in (("tokens_per_s_per_device", "tokens/s"), ("images_per_s_per_device", "images/s")):
        if name in figures:
            value = figures[name].value
            lines.append(f"  {word:<12}  {value:,.1f} per device, {value * ranks:,.1f} in all")
    rates = [f for n, f in figures.items() if n.startswith("tflops_")]
    if rates:
        words = "; ".join(f"{_short(f.value)} [{f.formula}]" for f in rates)
        lines.append(f"  TFLOP/s       per device: {words}")
    shares = [f for n, f in figures.items() if n.startswith("utilisation_")]
    if shares:
        lines.append("  utilisation   " + "; ".join(f"{f.value:.1%} [{f.formula}]" for f in shares))
    if "ceiling" in figures:
        lines.append(f"  ceiling       {_short(figures['ceiling'].value)} TFLOP/s [{figures['ceiling'].formula}]")
    if "peak_memory" in figures:
        lines.append(f"  memory        {figures['peak_memory'].value:.1f} GiB [{figures['peak_memory'].formula}]")
    parts = sorted(((f.value, n.removeprefix("profile_")) for n, f in figures.items() if n.startswith("profile_")))
    if parts:
        shown = [f"{name} {value:.1f}" for value, name in reversed(parts) if value >= 0.005 * parts[-1][0]]
        lines.append(f"  profile       ms of one step: {', '.join(shown)}")
    losses = row.samples.get("loss", ())
    if losses:
        lines.append(f"  loss          {losses[0]:.4f} to {losses[-1]:.4f} over {len(losses)} steps")
    return lines


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
