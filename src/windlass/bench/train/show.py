"""The table and the chart of a training run."""

from __future__ import annotations

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Chart, line_chart, sample_series
from windlass.bench import measure
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References


def text(record: BenchRecord) -> str:
    """A few lines for each run: step, rate, utilisation, loss; the formula beside every figure."""
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
