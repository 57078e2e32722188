"""`bench matmul`: runs it, and makes a row for each type and rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from windlass.bench.matmul.options import MatmulOptions
from windlass.bench.measure import Figure
from windlass.bench.options import to_argument
from windlass.bench.record import BenchRecord, Label, Measurement
from windlass.bench.runner import Bench, Part


def run(bench: Bench) -> BenchRecord:
    """One rank, unless a size was asked."""
    options = bench.options_as(MatmulOptions)
    one = None if bench.request.nodes or bench.request.ranks_per_node else 1
    part = Part(name="matmul", program="matmul", argument=to_argument(options), nodes=one, ranks_per_node=one)
    result = bench.run(part)
    sent = result.of_kind("row") if result else []
    return bench.record([matmul_measurement(one["result"], rank=one["rank"]) for one in sent])


def matmul_measurement(raw: Mapping[str, Any], **labels: Label) -> Measurement:
    """The row of one type."""
    return Measurement(
        labels={"type": raw["type"], "m": raw["m"], "n": raw["n"], "k": raw["k"], **labels},
        samples={"burst_s": tuple(raw["burst_s"]), "sustained_s": tuple(raw["sustained_s"])},
        figures={name: msgspec.convert(raw[name], Figure) for name in ("burst", "sustained")},
    )
