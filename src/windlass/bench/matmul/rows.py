"""Run `bench matmul`, make a row for each type and rank, and show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from windlass.base.pages.svg import Bar, bar_chart
from windlass.bench.matmul.options import MatmulOptions
from windlass.bench.measure import Figure
from windlass.bench.options import to_argument
from windlass.bench.record import BenchRecord, Label, Measurement
from windlass.bench.reference import References
from windlass.bench.runner import Bench, Part


def run(bench: Bench) -> BenchRecord:
    """Run with one rank, unless a size was given."""
    options = bench.options_as(MatmulOptions)
    one = None if bench.request.nodes or bench.request.ranks_per_node else 1
    part = Part(name="matmul", program="matmul", argument=to_argument(options), nodes=one, ranks_per_node=one)
    result = bench.run(part)
    sent = result.of_kind("row") if result else []
    return bench.record([matmul_measurement(one["result"], rank=one["rank"]) for one in sent])


def matmul_measurement(raw: Mapping[str, Any], **labels: Label) -> Measurement:
    """Return the row of one type."""
    return Measurement(
        labels={"type": raw["type"], "m": raw["m"], "n": raw["n"], "k": raw["k"], **labels},
        samples={"burst_s": tuple(raw["burst_s"]), "sustained_s": tuple(raw["sustained_s"])},
        figures={name: msgspec.convert(raw[name], Figure) for name in ("burst", "sustained")},
    )


def text(record: BenchRecord) -> str:
    """Return burst and sustained TFLOP/s of each type, with the slowest and fastest rank if there are several."""
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
