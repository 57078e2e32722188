"""Time collectives with the ranks' own torch: an all-reduce over all ranks, and the search for a slow node.

The search uses groups of nodes that shrink by half each round, and at the end pairs with other partners. The functions
that form and judge the groups are pure.

Every round times the same collective in all groups at once, so N nodes take about log2(N) rounds. In the last round
each node of a slow pair is paired with a node of a good pair. A node that is slow again is the cause. If neither is
slow again, the cause was the link between the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

REPEATS = 10
WARM_UP = 2
_DEVICE_BYTES = 128 << 20
_HOST_BYTES = 4 << 20
_DEVICE_SIDE = 4096
_HOST_SIDE = 256
_PRODUCTS_S = 0.5
"""Long enough that other processes cannot take a healthy core away all the time."""


class CheckedRank:
    """This rank among the others, and its device."""

    def __init__(self, torch: Any, rank: int, local_rank: int, spec: dict[str, Any]) -> None:
        self.torch, self.dist = torch, torch.distributed
        self.rank = rank
        self.ranks_per_node: int = spec["ranks_per_node"]
        self.nodes: int = spec["nodes"]
        self.node = rank // self.ranks_per_node
        self.backend, self.device, self.sync = pick_device(torch, local_rank)
        size = _HOST_BYTES if self.backend == "gloo" else _DEVICE_BYTES
        self.dist.init_process_group(self.backend, timeout=timedelta(seconds=spec["seconds"]))
        self.tensor = torch.ones(size // 4, dtype=torch.float32, device=self.device)

    def seconds(self, group: Any = None, repeats: int = REPEATS) -> list[float]:
        """Return the seconds of each all-reduce in this group, after a few that do not count."""
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
        """Return whether the last all-reduce over all ranks has the right result."""
        return bool((self.tensor == self.dist.get_world_size()).all().item())

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the same few numbers of every rank, on every rank."""
        torch = self.torch
        mine = torch.tensor(list(values), dtype=torch.float64).to(torch.float32).to(self.device)
        everyone = [torch.zeros_like(mine) for _ in range(self.dist.get_world_size())]
        self.dist.all_gather(everyone, mine)
        return [item.tolist() for item in everyone]


def pick_device(torch: Any, local: int) -> tuple[str, Any, Callable[[], None]]:
    """Return the backend, the device of this rank, and the function that waits for the device.

    Makes the device the current one.
    """
    for name, backend in (("cuda", "nccl"), ("xpu", "xccl")):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            index = local if module.device_count() > local else 0
            module.set_device(index)
            return backend, torch.device(name, index), module.synchronize
    return "gloo", torch.device("cpu"), lambda: None


def measure(torch: Any, rank: int, local_rank: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Time an all-reduce over all ranks and check its result. With `full`, also find slow nodes."""
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
    except Exception as error:  # the error is the result
        return {"all_reduce_error": "%s: %s" % (type(error).__name__, str(error).strip().splitlines()[0][:300])}


def find_slow(world: CheckedRank, over_all: list[float]) -> dict[str, Any]:
    """Find slow nodes, links and devices. Every rank returns the same result.

    Runs rounds of all-reduces in groups that shrink by half, then slow pairs with other partners. It also times a
    product of matrices on every device.
    """
    plan = rounds(world.nodes)
    steps = [{"groups": 1, "nodes": world.nodes, "best_s": round(min(over_all), 6), "slow": 0}]
    times: Times = {}
    suspects: dict[int, float] = {}
    for groups in plan[1:]:
        times = timed(world, groups)
        suspects = slow_groups(times)
        steps.append(_step(groups, times, suspects))
    verdict = SlowParts()
    if suspects:
        last = partners(plan[-1], suspects)
        again: Times = {}
        for batch in last:
            again.update({len(again) + index: values for index, values in timed(world, batch).items()})
        meetings = [group for batch in last for group in batch]
        if meetings:
            verdict = judge(plan[-1], suspects, meetings, again)
            steps.append(_step(meetings, again, {}))
    return {
        "nodes": {str(node): verdict.factor for node in verdict.nodes},
        "links": [list(link) for link in verdict.links],
        "factor": verdict.factor,
        "devices": {str(rank): round(factor, 1) for rank, factor in slow_devices(world).items()},
        "rounds": steps,
    }


def timed(world: CheckedRank, groups: Sequence[Sequence[int]]) -> Times:
    """Run one round with all groups at once. Nodes in no group wait."""
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
    """Return ranks whose device is slow, twice in a row."""
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
    torch.set_num_threads(1)  # threads that wait for each other on busy cores would distort the result
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
    return slow_groups(dict(enumerate(world.gather([kept[0], middle, middle]))))


def _step(groups: Sequence[Sequence[int]], times: Times, suspects: dict[int, float]) -> dict[str, Any]:
    best = [min(values) for values in times.values() if values]
    return {
        "groups": len(groups),
        "nodes": max((len(group) for group in groups), default=0),
        "best_s": round(min(best), 6) if best else 0.0,
        "worst_s": round(max(best), 6) if best else 0.0,
        "slow": len(suspects),
    }


FACTOR = 2.5
"""A group is slow only if it takes this many times as long as the usual group of its round."""
SPREADS = 3.0
"""A group is slow only if it also differs from the usual group by this many spreads."""

Times = dict[int, Sequence[float]]
"""Seconds of each repetition, by group."""


class SlowParts(NamedTuple):
    """The result of the rounds: nodes by number, links as pairs of nodes."""

    nodes: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    factor: float = 0.0
    """How many times slower than usual the worst of them is."""


def rounds(nodes: int) -> list[list[list[int]]]:
    """Return the groups of node numbers of each round: all, halves, quarters, …, pairs (or threes)."""
    groups = [list(range(nodes))]
    plan = [groups]
    while any(len(group) > 3 for group in groups):
        groups = [half for group in groups for half in _halves(group)]
        plan.append(groups)
    return plan


def _halves(group: list[int]) -> list[list[int]]:
    if len(group) <= 3:
        return [group]
    middle = len(group) // 2
    return [group[:middle], group[middle:]]


def group_of(groups: Sequence[Sequence[int]], node: int) -> int:
    """Return the number of the group that contains this node."""
    return next(index for index, group in enumerate(groups) if node in group)


def slow_groups(times: Times, part: int = 2) -> dict[int, float]:
    """Return the groups that are slow compared with the others of their round, with their factor.

    Each group is judged by its quickest repetition. An occasional disturbance of a healthy group spares at least one
    repetition. A slow node slows down all of them. The usual time is the maximum of the quickest 1/`part` of the
    groups.
    """
    best = {group: min(values) for group, values in times.items() if values}
    if len(best) < 2:
        return {}
    usual = sorted(best.values())[(len(best) - 1) // part]
    spread = _low_median([_spread(list(times[group])) for group in best if best[group] <= usual])
    return {
        group: value / usual
        for group, value in best.items()
        if value > FACTOR * usual and value > usual + SPREADS * spread
    }


def partners(groups: Sequence[Sequence[int]], slow: dict[int, float]) -> list[list[list[int]]]:
    """Return the last rounds: each node of a slow group with one node of a good group.

    A round has at most as many such pairs as there are good nodes. Remaining good nodes are paired with each other.
    Empty if no group is good or no group is slow.
    """
    suspects = [node for index in sorted(slow) for node in groups[index]]
    good = [node for index, group in enumerate(groups) if index not in slow for node in group]
    if not suspects or not good:
        return []
    batches = []
    for start in range(0, len(suspects), len(good)):
        meetings = [[suspect, healthy] for suspect, healthy in zip(suspects[start : start + len(good)], good)]
        rest = good[len(meetings) :]
        meetings += [rest[index : index + 2] for index in range(0, len(rest) - 1, 2)]
        batches.append(meetings)
    return batches


def judge(
    groups: Sequence[Sequence[int]], slow: dict[int, float], last: Sequence[Sequence[int]], times: Times
) -> SlowParts:
    """Judge the last round: compare the `times` of its groups `last` with the pairs before it."""
    best = {group: min(values) for group, values in times.items() if values}
    if not best:
        return SlowParts()
    suspects = {node for index in slow for node in groups[index]}
    again = slow_groups(times, part=3)  # up to half of these groups contain a suspect
    blamed = tuple(sorted(node for index in again for node in last[index] if node in suspects))
    links = []
    for index in slow:
        pair = [node for node in groups[index] if node not in blamed]
        if len(pair) == len(groups[index]) == 2:
            links.append((pair[0], pair[1]))
    worst = max([*again.values(), *(slow[index] for index in slow if links)], default=0.0)
    return SlowParts(nodes=blamed, links=tuple(sorted(links)), factor=round(worst, 1))


def _low_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _spread(values: list[float]) -> float:
    """Return the difference between the quickest and the median repetition, which ignores outliers above."""
    return _low_median(values) - min(values)
