"""The table and the chart of `bench matmul`."""

from __future__ import annotations

from windlass.base.pages.svg import Bar, bar_chart
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References


def text(record: BenchRecord) -> str:
    """Burst and sustained TFLOP/s of each type; the slowest and fastest rank where there are several."""
    name = record.device.get("name", "unknown device")
    lines = [
        f"matrix products on {name} [2*m*n*k, median]",
        f"{'type':<9} {'m x n x k':>18} {'burst':>10} {'sustained':>10}  TFLOP/s",
    ]
    kinds = dict.fromkeys(str(row.labels["type"]) for row in record.rows)
    for kind in kinds:
        rows = [row for row in record.rows if row.labels["type"] == kind]
        shape = " x ".join(str(rows[0].labels[side]) for side in "mnk")
        burst = sorted(row.figures["burst"].value for row in rows)
        kept = sorted(row.figures["sustained"].value for row in rows)
        middle = len(rows) // 2
        many = f"  ({len(rows)} devices: {_short(kept[0])} to {_short(kept[-1])})" if len(rows) > 1 else ""
        lines.append(f"{kind:<9} {shape:>18} {_short(burst[middle]):>10} {_short(kept[middle]):>10}{many}")
    return "\n".join(lines)


def _short(tflops: float) -> str:
    return f"{tflops:.1f}" if tflops >= 10 else f"{tflops:.3g}"


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
