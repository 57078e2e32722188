"""The table and the charts of `bench ddp`."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.base.pages.svg import Bar, Chart, Series, bar_chart, line_chart
from windlass.bench import measure
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References

PERCENTILES = (50, 75, 90, 95)


def table_lines(rows: Sequence[Measurement]) -> list[str]:
    """A line per size: percentiles of seconds per iteration and examples per second of one device, and what is left of
    the rate without DDP."""
    alone = next((row for row in rows if row.labels.get("label") == "no ddp"), None)
    lines = [" " * 22 + "".join(f"      {'sec/iter':>8}    {'ex/sec':>6}" for _ in PERCENTILES) + "      left"]
    for row in rows:
        batch = float(row.labels["batch"] or 0)
        cells = ""
        for percent in PERCENTILES:
            seconds = measure.percentile(row.samples["step_s"], percent)
            rate = batch / seconds
            cells += f"  p{percent}: {seconds:6.3f}s  {rate:6.{0 if rate >= 100 else 1}f}/s"
        left = ""
        if alone is not None:
            share = measure.percentile(alone.samples["step_s"], 50) / measure.percentile(row.samples["step_s"], 50)
            left = f"  {share:7.1%}"
        lines.append(f"{row.labels['ranks']:>4} ranks -- {row.labels['label']!s:>8}:{cells}{left}")
    return lines


def text(record: BenchRecord) -> str:
    lines: list[str] = []
    for model in dict.fromkeys(str(row.labels["model"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["model"] == model]
        first = rows[0].labels
        lines += [
            "",
            f"Benchmark: {model} with batch size {first['batch']} ({first['precision']}, "
            f"{record.device.get('name', 'unknown device')})",
            "",
            *table_lines(rows),
        ]
    return "\n".join(lines).lstrip("\n")


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
