"""The table of `bench ddp`: percentiles by size."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.bench import measure
from windlass.bench.record import BenchRecord, Measurement

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
