"""The search for a slow node, on synthetic times: found in O(log N) rounds, and nobody is blamed where all are well."""

from __future__ import annotations

import math
import random

import pytest

from windlass.node.checks import collectives as slow


class Machine:
    """Nodes whose all-reduce takes as long as their slowest member; noise only ever adds time."""

    def __init__(self, nodes: int, seed: int, *, slow_nodes: dict[int, float] | None = None) -> None:
        self.nodes, self.random = nodes, random.Random(seed)
        self.slow_nodes = slow_nodes or {}
        self.slow_links: dict[frozenset[int], float] = {}
        self.rounds = 0

    def times(self, groups: list[list[int]]) -> slow.Times:
        self.rounds += 1
        return {index: [self._once(group) for _ in range(10)] for index, group in enumerate(groups)}

    def _once(self, group: list[int]) -> float:
        factor = max(self.slow_nodes.get(node, 1.0) for node in group)
        for link, value in self.slow_links.items():
            factor = max(factor, value if link <= set(group) else 1.0)
        noise = self.random.expovariate(4.0)  # a shared fabric, and whatever else runs there
        spike = self.random.choice((0.0,) * 9 + (5.0,))
        return 0.01 * (factor + noise + spike)

    def search(self) -> slow.SlowParts:
        plan = slow.rounds(self.nodes)
        suspects: dict[int, float] = {}
        for groups in plan[1:]:
            suspects = slow.slow_groups(self.times(groups))
        again: slow.Times = {}
        last = slow.partners(plan[-1], suspects)
        for batch in last:
            again.update({len(again) + index: values for index, values in self.times(batch).items()})
        meetings = [group for batch in last for group in batch]
        return slow.judge(plan[-1], suspects, meetings, again) if meetings else slow.SlowParts()


@pytest.mark.parametrize("nodes", [4, 5, 6, 7, 8, 9, 33, 64, 1000])
def test_the_slow_node_has_a_name_after_few_rounds(nodes: int) -> None:
    for seed in range(20 if nodes < 100 else 3):
        culprit = random.Random(seed).randrange(nodes)
        machine = Machine(nodes, seed, slow_nodes={culprit: 5.0})
        assert machine.search().nodes == (culprit,), (nodes, seed)
        assert machine.rounds <= math.ceil(math.log2(nodes)) + 2


@pytest.mark.parametrize("nodes", [4, 7, 16, 256])
def test_healthy_nodes_give_no_verdict(nodes: int) -> None:
    for seed in range(100 if nodes < 100 else 10):
        assert Machine(nodes, seed).search() == slow.SlowParts(), (nodes, seed)


def test_a_slow_link_is_not_blamed_on_a_node() -> None:
    machine = Machine(16, 3)
    machine.slow_links[frozenset({4, 5})] = 6.0
    verdict = machine.search()
    assert verdict.nodes == () and verdict.links == ((4, 5),)


def test_several_slow_nodes_are_all_named() -> None:
    machine = Machine(64, 9, slow_nodes={3: 5.0, 40: 8.0, 41: 6.0})
    assert machine.search().nodes == (3, 40, 41)


def test_two_nodes_cannot_be_told_apart() -> None:
    assert slow.rounds(2) == [[[0, 1]]]
    assert slow.slow_groups({0: [1.0, 1.0]}) == {}


def test_every_round_has_every_node_once() -> None:
    for nodes in range(1, 70):
        for groups in slow.rounds(nodes):
            assert sorted(node for group in groups for node in group) == list(range(nodes))
        assert all(len(group) <= 3 for group in slow.rounds(nodes)[-1])


def test_a_slow_device_stands_out() -> None:
    seconds = {rank: [0.01, 0.011, 0.012] for rank in range(8)}
    assert slow.slow_groups({**seconds, 5: [0.05, 0.06, 0.05]}).keys() == {5}
    assert slow.slow_groups(seconds) == {}
