"""Collectives of the examination, with the ranks' own torch: an all-reduce over all, the search for a slow node."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from windlass.node.checks import slow

REPEATS = 10
WARM_UP = 2
_DEVICE_BYTES = 128 << 20
_HOST_BYTES = 4 << 20
_DEVICE_SIDE = 4096
_HOST_SIDE = 256
_PRODUCTS_S = 0.5
"""So long that a healthy core is not taken away all the time."""


class CheckedRank:
    """This rank among the others, and the device that it works with."""

    def __init__(self, torch: Any, rank: int, local_rank: int, spec: dict[str, Any]) -> None:
        self.torch, self.dist = torch, torch.distributed
        self.rank = rank
        self.ranks_per_node: int = spec["ranks_per_node"]
        self.nodes: int = spec["nodes"]
        self.node = rank // self.ranks_per_node
        self.backend, self.device, self.sync = _device(torch, local_rank)
        size = _HOST_BYTES if self.backend == "gloo" else _DEVICE_BYTES
        self.dist.init_process_group(self.backend, timeout=timedelta(seconds=spec["seconds"]))
        self.tensor = torch.ones(size // 4, dtype=torch.float32, device=self.device)

    def seconds(self, group: Any = None, repeats: int = REPEATS) -> list[float]:
        """Seconds of each all-reduce in this group, after a few that do not count."""
        found = []
        for turn in range(WARM_UP + repeats):
            self.tensor.fill_(1.0)
            self.dist.barrier(group=group)
            self.sync()
            began = time.perf_counter()
            self.dist.all_reduce(self.tensor, group=group)
            self.sync()
            if turn >= WARM_UP:
                found.append(time.perf_counter() - began)
        return found

    def is_right(self) -> bool:
        """Whether the last all-reduce over all has the right result."""
        return bool((self.tensor == self.dist.get_world_size()).all().item())

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The same few numbers of every rank, on every rank."""
        torch = self.torch
        mine = torch.tensor(list(values), dtype=torch.float64).to(torch.float32).to(self.device)
        everyone = [torch.zeros_like(mine) for _ in range(self.dist.get_world_size())]
        self.dist.all_gather(everyone, mine)
        return [item.tolist() for item in everyone]


def _device(torch: Any, local: int) -> tuple[str, Any, Callable[[], None]]:
    for name, backend in (("cuda", "nccl"), ("xpu", "xccl")):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            index = local if module.device_count() > local else 0
            module.set_device(index)
            return backend, torch.device(name, index), module.synchronize
    return "gloo", torch.device("cpu"), lambda: None


def measure(torch: Any, rank: int, local_rank: int, spec: dict[str, Any]) -> dict[str, Any]:
    """What an all-reduce over all ranks takes and whether it is right; with `full`, who is slow."""
    try:
        world = CheckedRank(torch, rank, local_rank, spec)
        seconds = world.seconds()
        right = world.is_right()
        size = world.dist.get_world_size()
        best = min(seconds)
        moved = world.tensor.numel() * 4
        found: dict[str, Any] = {
            "backend": world.backend,
            "device": str(world.device),
            "all_reduce_right": right,
            "bytes": moved,
            "busbw_gbs": round(moved * 2 * (size - 1) / size / best / 1e9, 3) if size > 1 else 0.0,
        }
        if spec["level"] == "full":
            search = find_slow(world, seconds)
            if rank == 0:
                found["slow"] = search
        return found
    except Exception as error:  # what went wrong is the answer
        return {"all_reduce_error": "%s: %s" % (type(error).__name__, str(error).strip().splitlines()[0][:300])}


def find_slow(world: CheckedRank, over_all: list[float]) -> dict[str, Any]:
    """Rounds of all-reduces in groups that shrink by half, then slow pairs with other partners; and a product of
    matrices on every device. The same on all ranks."""
    plan = slow.rounds(world.nodes)
    steps = [{"groups": 1, "nodes": world.nodes, "best_s": round(min(over_all), 6), "slow": 0}]
    times: slow.Times = {}
    suspects: dict[int, float] = {}
    for groups in plan[1:]:
        times = timed(world, groups)
        suspects = slow.slow_groups(times)
        steps.append(_step(groups, times, suspects))
    verdict = slow.SlowParts()
    if suspects:
        last = slow.partners(plan[-1], suspects)
        again: slow.Times = {}
        for batch in last:
            again.update({len(again) + index: values for index, values in timed(world, batch).items()})
        meetings = [group for batch in last for group in batch]
        if meetings:
            verdict = slow.judge(plan[-1], suspects, meetings, again)
            steps.append(_step(meetings, again, {}))
    return {
        "nodes": {str(node): verdict.factor for node in verdict.nodes},
        "links": [list(link) for link in verdict.links],
        "factor": verdict.factor,
        "devices": {str(rank): round(factor, 1) for rank, factor in slow_devices(world).items()},
        "rounds": steps,
    }


def timed(world: CheckedRank, groups: Sequence[Sequence[int]]) -> slow.Times:
    """One round: every group at once. Nodes that are in none of them wait."""
    mine = next((index for index, group in enumerate(groups) if world.node in group), None)
    values = [0.0] * REPEATS
    if mine is not None:
        nodes = sorted(groups[mine])
        ranks = [n * world.ranks_per_node + local for n in nodes for local in range(world.ranks_per_node)]
        made = world.dist.new_group(ranks, use_local_synchronization=True)
        values = world.seconds(made)
    everyone = world.gather([-1.0 if mine is None else float(mine), *values])
    found: dict[int, list[float]] = {}
    for row in everyone:
        if row[0] >= 0:
            known = found.setdefault(int(row[0]), row[1:])
            found[int(row[0])] = [max(pair) for pair in zip(known, row[1:])]
    return dict(found)


def slow_devices(world: CheckedRank) -> dict[int, float]:
    """Ranks whose device is slow, twice in a row."""
    first = _products(world)
    if not first:
        return {}
    again = _products(world)
    return {rank: min(factor, again[rank]) for rank, factor in first.items() if rank in again}


def _products(world: CheckedRank) -> dict[int, float]:
    torch = world.torch
    host = world.backend == "gloo"
    side = _HOST_SIDE if host else _DEVICE_SIDE
    kind = torch.float32 if host else torch.bfloat16
    left = torch.ones((side, side), dtype=kind, device=world.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other on busy cores say nothing about the node
    seconds: list[float] = []
    world.dist.barrier()
    until = time.perf_counter() + _PRODUCTS_S
    while len(seconds) < WARM_UP + REPEATS or time.perf_counter() < until:
        world.sync()
        began = time.perf_counter()
        torch.mm(left, left)
        world.sync()
        seconds.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    kept = sorted(seconds[WARM_UP:])
    middle = kept[len(kept) // 2]
    return slow.slow_groups(dict(enumerate(world.gather([kept[0], middle, middle]))))


def _step(groups: Sequence[Sequence[int]], times: slow.Times, suspects: dict[int, float]) -> dict[str, Any]:
    best = [min(values) for values in times.values() if values]
    return {
        "groups": len(groups),
        "nodes": max((len(group) for group in groups), default=0),
        "best_s": round(min(best), 6) if best else 0.0,
        "worst_s": round(max(best), 6) if best else 0.0,
        "slow": len(suspects),
    }
