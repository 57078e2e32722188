"""Records made by hand, from which tables, pages and verdicts are made in tests."""

from __future__ import annotations

from typing import Any

from windlass.bench.collectives.rows import measurement
from windlass.bench.measure import Figure
from windlass.bench.record import BenchRecord, Measurement, Where, new_record

GH200 = {"kind": "cuda", "vendor": "nvidia", "name": "NVIDIA GH200 120GB", "memory_bytes": 101_000_000_000}


def told(
    size: int, time_us: float, *, placement: str = "out-of-place", op: str = "all_reduce", **more: Any
) -> dict[str, Any]:
    """A message of the first rank about one measurement."""
    message = {"op": op, "bytes": size, "count": size // 4, "type": "float", "redop": "sum", "root": -1}
    return message | {"placement": placement, "time_s": [time_us / 1e6] * 5, "wrong": 0} | more


def collectives_record(
    *rows: dict[str, Any], nodes: int = 2, ranks: int = 8, device: Any = None, **more: Any
) -> BenchRecord:
    return new_record(
        "collectives",
        where=Where(site="somewhere", nodes=nodes, ranks_per_node=ranks // nodes),
        device=GH200 if device is None else device,
        rows=tuple(measurement(row, ranks, nodes) for row in rows),
        **more,
    )


def training_rowed(
    label: str, ranks: int, nodes: int, steps: list[float], *, parallel: str = "ddp", batch: int = 32
) -> Measurement:
    return Measurement(
        labels={
            "model": "resnet50",
            "precision": "fp32",
            "parallel": parallel,
            "batch": batch,
            "ranks": ranks,
            "nodes": nodes,
            "label": label,
        },
        samples={"step_s": tuple(steps), "loss": (7.0, 6.9)},
        figures={"images_per_s_per_device": Figure(value=batch / steps[0], unit="images/s", formula="items/time")},
    )


def ddp_record(*rows: Measurement) -> BenchRecord:
    return new_record("ddp", where=Where(nodes=2, ranks_per_node=4), device=GH200, rows=rows)
