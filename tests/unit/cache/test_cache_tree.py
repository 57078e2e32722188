from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from windlass.node.wire.tree import (
    ancestors,
    children,
    node_at,
    owner_route,
    owners,
    position_of,
    tree_route,
)

SHAPES = st.integers(1, 200).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, 8), st.integers(1, min(n, 8)), st.integers(0, n - 1))
)


@given(SHAPES)
def test_every_node_reaches_the_reader_of_each_stripe(shape: tuple[int, int, int, int]) -> None:
    nodes, fanout, stripes, node = shape
    for stripe in range(stripes):
        chain = ancestors(node, stripe, stripes, nodes, fanout)
        assert (chain[-1] if chain else node) == node_at(0, stripe, stripes, nodes)


@given(SHAPES)
def test_children_name_their_parent_and_nobody_else_does(shape: tuple[int, int, int, int]) -> None:
    nodes, fanout, stripes, node = shape
    for stripe in range(stripes):
        mine = children(node, stripe, stripes, nodes, fanout)
        assert len(mine) <= fanout
        named = [n for n in range(nodes) if ancestors(n, stripe, stripes, nodes, fanout)[:1] == (node,)]
        assert sorted(mine) == sorted(named)


@given(SHAPES)
def test_a_node_asks_only_nodes_that_stand_before_it_so_waiting_never_goes_in_a_circle(
    shape: tuple[int, int, int, int],
) -> None:
    nodes, fanout, stripes, node = shape
    for stripe in range(stripes):
        here = position_of(node, stripe, stripes, nodes)
        route = tree_route(node, stripe, stripes, nodes, fanout)
        assert len(set(route)) == len(route)
        assert all(position_of(other, stripe, stripes, nodes) < here for other in route)


def test_with_the_root_dead_all_but_the_first_standby_still_have_somebody_to_ask() -> None:
    nodes, fanout, dead = 100, 4, 0
    alone = [n for n in range(1, nodes) if not [r for r in tree_route(n, 0, 1, nodes, fanout) if r != dead]]
    assert alone == [1]


def test_a_node_that_forwards_in_one_stripe_is_a_leaf_in_the_other() -> None:
    nodes, fanout, stripes = 16, 2, 2
    for node in range(nodes):
        busy = [s for s in range(stripes) if children(node, s, stripes, nodes, fanout)]
        assert len(busy) <= 1


def test_depth_at_ten_thousand_nodes_is_seven() -> None:
    assert max(len(ancestors(n, 0, 1, 10_000, 4)) for n in (9_999, 5_000)) == 7


@given(st.binary(min_size=1, max_size=30), st.integers(1, 300))
def test_owners_are_distinct_and_exist(key: bytes, nodes: int) -> None:
    ranked = owners(key, nodes)
    assert len(set(ranked)) == len(ranked) >= min(1, nodes)
    assert all(0 <= n < nodes for n in ranked)


def test_owners_share_the_load_evenly() -> None:
    for nodes in (8, 128):
        count = Counter(owners(b"key%d" % i, nodes, 1)[0] for i in range(nodes * 200))
        assert len(count) == nodes
        assert max(count.values()) < 2 * min(count.values())


def test_one_node_more_moves_only_what_it_gets() -> None:
    keys = [b"key%d" % i for i in range(2000)]
    moved = [k for k in keys if owners(k, 20, 1) != owners(k, 21, 1)]
    assert all(owners(k, 21, 1) == (20,) for k in moved)
    assert 0 < len(moved) < 2000 / 21 * 2


def test_an_owner_asks_only_owners_that_rank_before_it() -> None:
    for number in range(200):
        key = b"key%d" % number
        ranked = owners(key, 50)
        assert owner_route(key, ranked[0], 50) == ()
        assert owner_route(key, ranked[1], 50) == ranked[:1]
        stranger = next(n for n in range(50) if n not in ranked)
        assert owner_route(key, stranger, 50) == ranked
