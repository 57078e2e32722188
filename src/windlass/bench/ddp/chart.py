"""Charts of `bench ddp`: what is left of one device's rate as ranks join."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.base.pages.svg import Bar, Chart, Series, bar_chart, line_chart
from windlass.bench import measure
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for model in dict.fromkeys(str(row.labels["model"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["model"] == model]
        alone = next((row for row in rows if row.labels["parallel"] == "none"), None)
        spread = [row for row in rows if row.labels["parallel"] != "none"]
        if not spread:
            continue
        if len(spread) == 1:  # one point is no curve
            made.append((f"{model}: examples per second and device, median", _ddp_bars(model, rows)))
            continue
        lines = []
        for percent in (50, 95):
            points = [
                (float(r.labels["ranks"] or 1), _batch(r) / measure.percentile(r.samples["step_s"], percent))
                for r in spread
            ]
            lines.append(Series(name=f"p{percent}", points=tuple(points)))
        level = None
        if alone is not None:
            rate = _batch(alone) / measure.percentile(alone.samples["step_s"], 50)
            level = (rate, f"no ddp: {rate:,.0f}")
        chart = Chart(
            title=f"{model}: examples per second and device by ranks",
            x_name="ranks",
            y_name="ex/s per device",
            series=tuple(lines),
            ticks=tuple((float(r.labels["ranks"] or 1), str(r.labels["ranks"])) for r in spread),
            x_scale="log",
            level=level,
        )
        made.append((f"{model}: what is left of one device's rate as ranks join", line_chart(chart)))
    return made


def _ddp_bars(model: str, rows: Sequence[Measurement]) -> str:
    rates = [(str(row.labels["label"]), _batch(row) / measure.percentile(row.samples["step_s"], 50)) for row in rows]
    bars = [Bar(name=name, value=rate, text=f"{rate:,.0f}") for name, rate in rates]
    return bar_chart(f"{model}: examples per second and device", "ex/s", bars)


def _batch(row: Measurement) -> float:
    return float(row.labels["batch"] or 0)
