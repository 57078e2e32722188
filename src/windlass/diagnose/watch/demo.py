"""A simulated job for `watch --demo` and for measurements, with a slow rank, an idle device and changing figures."""

from __future__ import annotations

import math
import random

from windlass.diagnose.watch.job import DeviceRow, Job, NodeRow, RankRow

_GIB = 1 << 30


def demo_job(nodes: int, at: float, *, devices_per_node: int = 4, seed: int = 13) -> Job:
    """The job at this time. The same arguments give the same job."""
    rng = random.Random(f"{seed}/{int(at)}")
    ranks = range(nodes * devices_per_node)
    slow, idle = len(ranks) * 5 // 8, min(nodes - 1, 2) * devices_per_node + 1
    places = [(rank, *divmod(rank, devices_per_node)) for rank in ranks]
    return Job(
        at=at,
        name="demo",
        interval_s=2.0,
        nodes=tuple(_node_row(node, at, rng) for node in range(nodes)),
        devices=tuple(_device_row(node, local, at, rng, idle=rank == idle) for rank, node, local in places),
        ranks=tuple(_rank_row(rank, node, at, rng, slow=rank == slow) for rank, node, _ in places),
        compared=30,
        uneven=30,
    )


def _node_row(node: int, at: float, rng: random.Random) -> NodeRow:
    seen, cpu, memory = at - rng.random(), 0.4 + 0.1 * rng.random(), int((300 + 20 * rng.random()) * _GIB)
    received, sent = (18 + 2 * rng.random()) * 1e9, (18 + 2 * rng.random()) * 1e9
    read, written, power = 40e6 * rng.random(), 5e6 * rng.random(), 2400 + 200 * rng.random()
    name = f"nid{node + 1:05d}"
    return NodeRow(name, seen, cpu, memory, 480 * _GIB, received, sent, read, written, None, None, power)


def _device_row(node: int, local: int, at: float, rng: random.Random, *, idle: bool) -> DeviceRow:
    busy = 0.02 if idle else min(1.0, 0.96 + 0.04 * rng.random())
    power = 92.0 if idle else 560 + 60 * math.sin(at / 7.0) + 40 * rng.random()
    warm = 58 + 6 * rng.random()
    return DeviceRow(node, local, busy, 71 * _GIB, 96 * _GIB, power, warm, 1755.0, False, busy, 0.0)


def _rank_row(rank: int, node: int, at: float, rng: random.Random, *, slow: bool) -> RankRow:
    step = (182.0 if slow else 121.0) + 6 * math.sin(at / 7.0) + 3 * rng.random()
    last, data = at - step / 1000 * rng.random(), 0.43 if slow else 0.02 + 0.02 * rng.random()
    comm, loaded, memory = 0.07 + 0.02 * rng.random(), 6 + rng.random(), int((60 + 5 * rng.random()) * _GIB)
    steps, after = max(1, int(at % 86_400 / 0.125)), (step + 2, step * 1.2, 0.03, 0, step)
    return RankRow(rank, node, "steps", steps, last, step, data, comm, loaded, memory, *after, slow_share=float(slow))
