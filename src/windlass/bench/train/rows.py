"""Make rows of training runs (language model and ResNet) from the messages of their ranks, and show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Chart, line_chart, sample_series
from windlass.bench import measure
from windlass.bench.measure import Figure
from windlass.bench.record import BenchRecord, Label, Measurement
from windlass.bench.reference import References
from windlass.bench.runner import PartResult


def row_of(result: PartResult, **labels: Label) -> Measurement | None:
    """Return the row of one training launch with the step times of all ranks, or None if no step was measured.

    If the launch did not finish, it has only the step times of the first rank.
    """
    last = _last_sent(result)
    if last is None:
        return None
    steps = sorted(result.of_kind("steps"), key=lambda sent: int(sent["rank"]))
    all_steps = tuple(float(value) for sent in steps for value in sent["step_s"])
    return train_measurement(last["record"], nodes=result.plan.nodes, step_s=all_steps or None, **labels)


def train_measurement(
    raw: Mapping[str, Any], *, nodes: int, step_s: tuple[float, ...] | None = None, **labels: Label
) -> Measurement:
    """Return the row of one training run. `step_s` holds samples of more ranks than the first, if they are known."""
    options = raw["options"]
    row: dict[str, Label] = {
        "model": options["model"],
        "precision": options["precision"],
        "parallel": options["parallel"],
        "batch": options.get("batch") or options.get("micro_batch"),
        "ranks": int(raw["ranks"]),
        "nodes": nodes,
    }
    for name in ("sequence", "accumulation", "checkpointing"):
        if options.get(name) not in (None, 1, "none"):
            row[name] = options[name]
    if options.get("fp16_allreduce"):
        row["gradients"] = "fp16"
    samples = {"step_s": step_s or tuple(raw["samples"]["step_s"]), "loss": tuple(raw["losses"])}
    if raw.get("gradient_norms"):
        samples["gradient_norm"] = tuple(raw["gradient_norms"])
    figures = {name: msgspec.convert(value, Figure) for name, value in raw["figures"].items()}
    return Measurement(labels=row | labels, samples=samples, figures=figures | _memory_and_profile(raw))


def _memory_and_profile(raw: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the memory and, if requested, the profile of one more step."""
    found = {}
    if raw.get("peak_memory_bytes"):
        how = "most that tensors took at once, first rank"
        found["peak_memory"] = Figure(value=raw["peak_memory_bytes"] / 2**30, unit="GiB", formula=how)
    profile = raw.get("breakdown") or {}
    for kind, value in [*profile.get("kinds_ms", ()), *([["idle", profile["idle_ms"]]] if profile else ())]:
        found[f"profile_{kind}"] = Figure(value=value, unit="ms", formula="one step under the profiler, first rank")
    return found


def _last_sent(result: PartResult) -> dict[str, Any] | None:
    """Return the last training message of a launch: the complete result, or the measurements before it was stopped."""
    trained = result.of_kind("train")
    return trained[-1] if trained else None


def decided_options(results: Iterable[PartResult]) -> dict[str, Any]:
    """Return all options that the ranks used: the given ones and the defaults for the device."""
    decided = [last["record"]["options"] for result in results if (last := _last_sent(result))]
    return dict(decided[0]) if decided else {}


def loss_remarks(results: Iterable[PartResult], *, must_fall: bool = True) -> list[str]:
    """Return the problems of losses as phrases. Without `must_fall` the losses only have to be finite."""
    found = []
    for result in results:
        last = _last_sent(result)
        if last is None:
            continue
        finite = all(loss is not None and math.isfinite(loss) for loss in last["record"]["losses"])
        if must_fall or not finite:
            found += [f"{result.part.name}: {problem}" for problem in last["record"]["loss_problems"]]
        if not last.get("whole", True):
            steps = len(last["record"]["samples"]["step_s"])
            found.append(f"{result.part.name}: ended early; these are the first {counted(steps, 'step')} of rank 0")
    return found


def text(record: BenchRecord) -> str:
    """Return a few lines for each run: step, rate, utilisation, loss, with the formula of every figure."""
    return "\n".join(line for row in record.rows for line in _row_lines(row))


def _row_lines(row: Measurement) -> list[str]:
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


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for row in record.rows:
        steps = tuple(value * 1e3 for value in row.samples.get("step_s", ()))
        for name, unit, values in (("step time", "ms", steps), ("loss", "loss", row.samples.get("loss", ()))):
            chart = Chart(
                title=f"{row.labels.get('model')}: {name}",
                x_name="sample" if name == "step time" else "step",
                y_name=f"{name} ({unit})" if unit != name else name,
                series=(sample_series(name, values),),
                ticks=tuple((float(number), str(number)) for number in range(0, len(values), max(1, len(values) // 8))),
                y_from_zero=name != "loss",
            )
            made.append((f"{row.labels.get('model')} {row.labels.get('precision')}: {name}", line_chart(chart)))
    return made
