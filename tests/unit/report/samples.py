"""Samples of runs that nobody ran: a history and the last look, as the samplers of a job leave them."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from windlass.diagnose.watch.job import (
    FOLDER,
    HISTORY_FILE,
    NOW_FILE,
    About,
    DeviceRow,
    HistoryHead,
    HistoryLine,
    Job,
    NodeRow,
    RankRow,
)
from windlass.diagnose.watch.past import Past

T0 = 1_700_000_000.0
SPAN_S = 10.0


def write_samples(
    folder: Path,
    *,
    nodes: int = 4,
    ranks_per_node: int = 2,
    devices_per_node: int = 2,
    lines: int = 30,
    wait: float | None = 0.01,
    comm: float | None = 0.05,
    slow: int | None = None,
    slow_changes: bool = False,
    idle_device: int | None = None,
    retries: int = 0,
    power_w: float | None = 500.0,
    profiled: tuple[int, ...] = (),
) -> None:
    """`slow`: this rank waits for nobody and all others wait for it; `slow_changes`: another one each time."""
    rnd = random.Random(7)
    past = Past()
    hosts = tuple(f"node{n:04d}" for n in range(nodes))
    ranks = tuple(range(nodes * ranks_per_node))
    devices = tuple((n, i) for n in range(nodes) for i in range(devices_per_node))
    text = [msgspec.json.encode(HistoryHead(hosts=hosts, devices=devices, ranks=ranks))]
    for line in range(lines):
        late = rnd.choice(ranks) if slow_changes else slow
        rows = tuple((100.0 + rnd.random(), wait, _comm(rank, late, comm), 0.5) for rank in ranks)
        past.add(
            Job(
                at=T0 + line * SPAN_S,
                name="train",
                interval_s=2.0,
                nodes=tuple(NodeRow(host, T0, 0.5, 10**9, 10**11) for host in hosts),
                devices=tuple(
                    DeviceRow(*key, 0.0 if n == idle_device else 0.9, throttled=False) for n, key in enumerate(devices)
                ),
                ranks=tuple(
                    RankRow(rank, rank // ranks_per_node, "steps", 30 + line, T0, *rows[rank][:3]) for rank in ranks
                ),
            )
        )
        text.append(
            msgspec.json.encode(
                HistoryLine(
                    begin=T0 + line * SPAN_S,
                    end=T0 + (line + 1) * SPAN_S,
                    nodes=tuple((0.5, 1e9, 1e8, 1e6, power_w) for _ in hosts),
                    devices=tuple((0.0 if n == idle_device else 0.9, 300.0, 1e10) for n, _ in enumerate(devices)),
                    ranks=rows,
                )
            )
        )
    job = Job(
        at=T0 + lines * SPAN_S,
        name="train",
        interval_s=2.0,
        ended=True,
        about=About(profiled=profiled),
        nodes=tuple(NodeRow(host, T0, 0.5, 10**9, 10**11) for host in hosts),
        devices=tuple(DeviceRow(node, index, 0.9) for node, index in devices),
        ranks=tuple(
            RankRow(
                rank,
                rank // ranks_per_node,
                "ended",
                300,
                step_ms=100.0,
                wait_share=wait,
                comm_share=_comm(rank, slow, comm),
                all_ms=100.0,
                p95_ms=110.0,
                all_wait_share=wait,
                alloc_retries=retries,
                median_ms=100.0,
            )
            for rank in ranks
        ),
    )
    job = past.added_to(job)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    (folder / FOLDER / HISTORY_FILE).write_bytes(b"\n".join(text) + b"\n")
    (folder / FOLDER / NOW_FILE).write_bytes(msgspec.json.encode(job))


def _comm(rank: int, late: int | None, comm: float | None) -> float | None:
    if late is None:
        return comm
    return 0.02 if rank == late else 0.5
