"""A seeded corpus of runs, healthy and with one fault each, as the samplers of a job would record them.

Imports neither rules nor thresholds: what to expect is written down here with the fault. Every number is drawn from a
seed, with noise, missing samples and shifted clocks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from windlass.diagnose.watch.job import DeviceRow, HistoryHead, HistoryLine, Job, NodeRow, RankRow

FAULTS = (
    "slow-rank",
    "slow-node",
    "slow-input",
    "slow-input-of-one",
    "slow-save",
    "slow-network",
    "leak",
    "full-memory",
    "device-memory",
    "idle-device",
    "throttled-device",
    "oversubscribed",
    "stop-of-all",
    "stop-of-one",
    "silent-node",
)
EXPECTED = {
    "slow-rank": "straggler",
    "slow-node": "slow-node",
    "slow-input": "input-bound",
    "slow-input-of-one": "input-straggler",
    "slow-save": "pauses",
    "slow-network": "network-bound",
    "leak": "memory-growth",
    "full-memory": "memory-pressure",
    "device-memory": "device-memory",
    "idle-device": "idle-devices",
    "throttled-device": "throttled-devices",
    "oversubscribed": "oversubscribed",
    "stop-of-all": "stalled",
    "stop-of-one": "stalled",
    "silent-node": "lost",
}
ONLY_LIVE = {"stop-of-all", "stop-of-one", "silent-node"}
ONLY_HISTORY = {"leak"}
_GIB = 1 << 30


@dataclass(kw_only=True)
class Case:
    """One run. `fault` is empty for a healthy one. `ranks` and `hosts` are the culprits."""

    seed: int
    fault: str
    job: Job
    head: HistoryHead
    lines: tuple[HistoryLine, ...]
    cores: int
    ranks_per_node: int
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)

    @property
    def aside(self) -> bool:
        """Kept aside when rules are developed: three of ten."""
        return self.seed % 10 >= 7


def make_case(seed: int, fault: str) -> Case:
    """The run of a seed with this fault, while it runs; its history ends where it stands."""
    rnd = random.Random(f"{seed} {fault}")
    alone = fault == "" and rnd.random() < 0.3
    nodes = 1 if alone else rnd.choice([2, 3, 4, 8, 16] if fault != "slow-node" else [4, 8, 16])
    per_node = rnd.choice([1, 2, 4, 8]) if fault != "slow-node" else rnd.choice([2, 4])
    if fault in {"slow-rank", "slow-input-of-one", "stop-of-one"} and nodes * per_node < 4:
        nodes, per_node = 4, 2
    cores = per_node // 2 if fault == "oversubscribed" and per_node > 1 else per_node * rnd.choice([1, 4, 16])
    if fault == "oversubscribed" and per_node == 1:
        per_node, cores = 4, 2
    world, at = nodes * per_node, 1.7e9 + rnd.uniform(-100, 100)
    step_ms = 10 ** rnd.uniform(0.0, 3.3)
    hosts = tuple(f"nid{n:05d}" for n in range(nodes))
    bad_rank, bad_node = rnd.randrange(world), rnd.randrange(nodes)
    measures_comm = fault == "slow-network" or rnd.random() < 0.6
    history = _history(rnd, fault, hosts, per_node, step_ms, at, (bad_rank, bad_node), measures_comm)
    job = _job(rnd, fault, hosts, per_node, step_ms, at, (bad_rank, bad_node), measures_comm)
    job = msgspec.structs.replace(job, cores=cores)
    culprits = {bad_rank} if fault in {"slow-rank", "slow-input-of-one", "stop-of-one"} else set()
    places = {hosts[bad_node]} if fault in {"slow-node", "silent-node", "leak", "full-memory"} else set()
    return Case(
        seed=seed,
        fault=fault,
        job=job,
        head=history[0],
        lines=history[1],
        cores=cores,
        ranks_per_node=per_node,
        ranks=culprits,
        hosts=places,
    )


def _figures(
    rnd: random.Random, fault: str, rank: int, per_node: int, step_ms: float, bad: tuple[int, int], comm: bool
) -> tuple[float, float, float | None]:
    """Step, share of waiting for data and share of communication of one rank in one window."""
    slow = rank == bad[0] if fault == "slow-rank" else fault == "slow-node" and rank // per_node == bad[1]
    uneven = fault in {"slow-rank", "slow-node"}
    own = step_ms * rnd.uniform(0.97, 1.03)
    wait = rnd.uniform(0.0, 0.04)
    share: float | None = rnd.uniform(0.01, 0.12)
    if fault == "oversubscribed":
        own, share = step_ms * rnd.uniform(0.6, 1.6), rnd.uniform(0.05, 0.9)
    if uneven and comm:  # in step with each other: who is slow waits for nobody
        own, share = 2 * step_ms, rnd.uniform(0.0, 0.03) if slow else rnd.uniform(0.45, 0.55)
    elif slow:
        own *= rnd.uniform(1.7, 3.0)
    if fault == "slow-input":
        wait = rnd.uniform(0.35, 0.6)
    if fault == "slow-input-of-one" and rank == bad[0]:
        wait = rnd.uniform(0.4, 0.7)
    if fault == "slow-network":
        share = rnd.uniform(0.5, 0.6)
    return own, wait, share if comm or fault == "oversubscribed" else None


def _history(
    rnd: random.Random,
    fault: str,
    hosts: tuple[str, ...],
    per_node: int,
    step_ms: float,
    at: float,
    bad: tuple[int, int],
    comm: bool,
) -> tuple[HistoryHead, tuple[HistoryLine, ...]]:
    world, count = len(hosts) * per_node, rnd.randrange(24, 60)
    head = HistoryHead(
        hosts=hosts, devices=tuple((r // per_node, r % per_node) for r in range(world)), ranks=tuple(range(world))
    )
    start = rnd.randrange(1, 8)
    lines = []
    for number in range(count):
        starting = number < start
        begin = at - (count - number) * 10.0
        rows = []
        for rank in range(world):
            own, wait, share = _figures(rnd, fault, rank, per_node, step_ms, bad, comm)
            missing = starting or rnd.random() < 0.02
            rows.append((None, None, None, 1.0) if missing else (own, wait, share, rnd.uniform(0.5, 2.0)))
        memory = [_memory(rnd, fault, node == bad[1], number / count) for node in range(len(hosts))]
        lines.append(
            HistoryLine(
                begin=begin,
                end=begin + 10.0,
                nodes=tuple((0.4, used, 1e8, 1e6, 500.0) for used in memory),
                devices=tuple(
                    (
                        0.0 if starting or (fault == "idle-device" and n == bad[0]) else rnd.uniform(0.5, 0.99),
                        300.0,
                        1e10,
                    )
                    for n in range(world)
                ),
                ranks=tuple(rows),
            )
        )
    return head, tuple(lines)


def _memory(rnd: random.Random, fault: str, here: bool, progress: float) -> float:
    used = 40 * _GIB * rnd.uniform(0.98, 1.02)
    if fault == "leak" and here:
        used += 60 * _GIB * progress
    return 97 * _GIB if fault == "full-memory" and here else min(used, 90.0 * _GIB)


def _job(
    rnd: random.Random,
    fault: str,
    hosts: tuple[str, ...],
    per_node: int,
    step_ms: float,
    at: float,
    bad: tuple[int, int],
    comm: bool,
) -> Job:
    world = len(hosts) * per_node
    pause = rnd.uniform(4.0, 9.0) if fault == "slow-save" else 1.0
    stopped = {"stop-of-all": set(range(world)), "stop-of-one": {bad[0]}}.get(fault, set())
    stopped_s = max(200.0, 20 * step_ms / 1000)
    ranks = []
    for rank in range(world):
        own, wait, share = _figures(rnd, fault, rank, per_node, step_ms, bad, comm)
        last = at - (stopped_s if rank in stopped else rnd.uniform(0.0, 1.0 + own / 1000))
        ranks.append(
            RankRow(
                rank,
                rank // per_node,
                "steps",
                rnd.randrange(200, 5000),
                last,
                own,
                wait,
                share,
                1.0,
                _GIB,
                own * pause,
                own * (rnd.uniform(8, 20) if fault == "slow-save" else rnd.uniform(1.05, 1.6)),
                wait,
                rnd.randrange(1, 9) if fault == "device-memory" and rank == bad[0] else 0,
            )
        )
    nodes = tuple(
        NodeRow(
            host,
            at - (120.0 if fault == "silent-node" and n == bad[1] else rnd.uniform(0.0, 3.0)),
            0.5,
            int(_memory(rnd, fault, n == bad[1], 0.5)),
            100 * _GIB,
        )
        for n, host in enumerate(hosts)
    )
    devices = tuple(
        DeviceRow(
            rank // per_node,
            rank % per_node,
            0.0 if fault == "idle-device" and rank == bad[0] else rnd.uniform(0.5, 0.99),
            throttled=fault == "throttled-device" and rank == bad[0],
        )
        for rank in range(world)
    )
    return Job(at=at, name="corpus", interval_s=2.0, nodes=nodes, devices=devices, ranks=tuple(ranks))
