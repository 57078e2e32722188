"""Which node is slow: groups of nodes that shrink by half each round, and at the end pairs with other partners. Pure.

Every round times the same collective in all groups at once, so N nodes take about log2(N) rounds. In the last one each
node of a slow pair meets a node of a good pair: who is slow again is to blame, and where nobody is, the link between
the two was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FACTOR = 2.5
"""A group is slow when it takes this many times as long as the usual one of its round…"""
SPREADS = 3.0
"""…and is this many spreads away from it."""

Times = dict[int, Sequence[float]]
"""By group: seconds of each repetition."""


class SlowParts(NamedTuple):
    """What the rounds say: nodes by number, links as pairs of them."""

    nodes: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    factor: float = 0.0
    """How many times slower than the usual the worst of them is."""


def rounds(nodes: int) -> list[list[list[int]]]:
    """Groups of node numbers of each round: all, halves, quarters, …, pairs (or threes)."""
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
    """The number of the group that this node is in."""
    return next(index for index, group in enumerate(groups) if node in group)


def slow_groups(times: Times, part: int = 2) -> dict[int, float]:
    """Groups that are slow against the others of their round, with how many times. Each counts by its quickest
    repetition: what disturbs a healthy group now and then leaves one repetition alone, a slow node leaves none. Usual
    is what the quickest 1/`part` of the groups takes at most."""
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
    """The last rounds: each node of a slow group with one node of a good group, as many at once as there are good ones;
    good ones that are left meet each other. None where no group is good, or nothing is slow."""
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
    """After the last round: `times` of its groups `last`, against those of the pairs before it."""
    best = {group: min(values) for group, values in times.items() if values}
    if not best:
        return SlowParts()
    suspects = {node for index in slow for node in groups[index]}
    again = slow_groups(times, part=3)  # up to a half of these groups hold a suspect
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
    """Between the quickest and the middle repetition: outliers above do not count."""
    return _low_median(values) - min(values)
