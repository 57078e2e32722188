"""A job that does not exist, for `watch --demo` and for measuring: a slow rank, an idle device, figures that move."""

from __future__ import annotations

import math
import random

from windlass.diagnose.watch.job import DeviceRow, Job, NodeRow, RankRow

_GIB = 1 << 30


def demo_job(nodes: int, at: float, *, devices_per_node: int = 4, seed: int = 13) -> Job:
    """The job at a time. The same arguments give the same job."""
    wave = math.sin(at / 7.0)
    rng = random.Random(f"{seed}/{int(at)}")
    slow = (nodes * devices_per_node) * 5 // 8
    idle = min(nodes - 1, 2) * devices_per_node + 1
    node_rows, device_rows, rank_rows = [], [], []
    for node in range(nodes):
        node_rows.append(
            NodeRow(
                f"nid{node + 1:05d}",
                at - rng.random(),
                0.4 + 0.1 * rng.random(),
                int((300 + 20 * rng.random()) * _GIB),
                480 * _GIB,
                (18 + 2 * rng.random()) * 1e9,
                (18 + 2 * rng.random()) * 1e9,
                40e6 * rng.random(),
                5e6 * rng.random(),
                None,
                None,
                2400 + 200 * rng.random(),
            )
        )
        for local in range(devices_per_node):
            rank = node * devices_per_node + local
            busy = 0.02 if rank == idle else min(1.0, 0.96 + 0.04 * rng.random())
            power = 92.0 if rank == idle else 560 + 60 * wave + 40 * rng.random()
            device_rows.append(
                DeviceRow(
                    node, local, busy, 71 * _GIB, 96 * _GIB, power, 58 + 6 * rng.random(), 1755.0, False, busy, 0.0
                )
            )
            step = (182.0 if rank == slow else 121.0) + 6 * wave + 3 * rng.random()
            steps = max(1, int(at % 86_400 / 0.125))
            rank_rows.append(
                RankRow(
                    rank,
                    node,
                    "steps",
                    steps,
                    at - step / 1000 * rng.random(),
                    step,
                    0.43 if rank == slow else 0.02 + 0.02 * rng.random(),
                    0.07 + 0.02 * rng.random(),
                    6 + rng.random(),
                    int((60 + 5 * rng.random()) * _GIB),
                    step + 2,
                    step * 1.2,
                    0.03,
                    0,
                    step,
                    slow_share=float(rank == slow),
                )
            )
    return Job(
        at=at,
        name="demo",
        interval_s=2.0,
        nodes=tuple(node_rows),
        devices=tuple(device_rows),
        ranks=tuple(rank_rows),
        compared=30,
        uneven=30,
    )
