"""The chart of `bench io`: samples delivered, with what the devices need marked."""

from __future__ import annotations

from windlass.base.pages.svg import Bar, bar_chart
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    bars = [
        Bar(
            name=f"{row.labels['format']} {row.labels['pass']}",
            value=row.figures["samples_per_s"].value,
            text=f"{row.figures['samples_per_s'].value:,.0f}",
            mark=row.figures["needed"].value if "needed" in row.figures else None,
        )
        for row in record.rows
    ]
    return [
        ("samples delivered per second by one node", bar_chart("input", "samples/s", bars, "what the devices need"))
    ]
