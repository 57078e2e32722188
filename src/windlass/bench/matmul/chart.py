"""The chart of `bench matmul`: sustained rates, with the burst marked."""

from __future__ import annotations

from windlass.base.pages.svg import Bar, bar_chart
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    bars = [
        Bar(
            name=str(row.labels["type"]) + (f" rank {row.labels['rank']}" if row.labels.get("rank") else ""),
            value=row.figures["sustained"].value,
            text=f"{row.figures['sustained'].value:.4g}",
            mark=row.figures["burst"].value,
        )
        for row in record.rows
    ]
    return [("sustained rate of matrix products [2*m*n*k]", bar_chart("matmul", "TFLOP/s", bars, "burst"))]
