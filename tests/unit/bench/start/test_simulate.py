"""The simulator: pure, seeded, and held against what was published."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from windlass.bench.start.chart import plot_svg
from windlass.bench.start.simulate import CPU_BUILD, PUBLISHED, WAYS, Events, Machine, Range, Server, depth_of, predict

SIZES = (1, 64, 1024, 8192, 16384)


def test_same_seed_gives_the_same_answer_and_another_one_another() -> None:
    assert predict("direct", (64,), 12, draws=10) == predict("direct", (64,), 12, draws=10)
    assert predict("direct", (64,), 12, draws=10) != predict("direct", (64,), 12, draws=10, seed=2)


def test_events_happen_in_order_of_time_and_a_busy_server_makes_wait() -> None:
    events, seen = Events(), []
    server = Server(events)
    server.serve(2.0, lambda: seen.append(("first", events.now)))
    server.serve(1.0, lambda: seen.append(("second", events.now)))
    events.at(1.0, lambda: seen.append(("between", events.now)))
    events.run()
    assert seen == [("between", 1.0), ("first", 2.0), ("second", 3.0)]


def test_depth_of_a_tree() -> None:
    assert [depth_of(n, 4) for n in (1, 2, 5, 6, 21, 22)] == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("way", ["direct", "copper"])
def test_published_times_lie_in_or_near_the_range(way: str) -> None:
    """Near: within half of the range's end. The range is for one machine, the table for another day of it."""
    for nodes, lustre, copper in PUBLISHED:
        (range_,) = predict(way, (nodes,), 12)  # type: ignore[arg-type]
        seconds = lustre if way == "direct" else copper
        assert 0.6 * range_.low <= seconds <= 1.5 * range_.high, (nodes, seconds, range_)


def test_direct_grows_with_the_nodes_and_the_others_hardly_do() -> None:
    at = {way: {p.nodes: p for p in predict(way, SIZES, 12)} for way in WAYS}
    assert at["direct"][16384].middle > 10 * at["direct"][1024].middle
    for way in ("copper", "windlass", "windlass+trace"):
        assert at[way][16384].middle < 3 * at[way][64].middle
    for nodes in SIZES[1:]:
        middles = [at[way][nodes].middle for way in ("windlass+trace", "windlass", "copper", "direct")]
        assert all(a < b for a, b in pairwise(middles)), (nodes, middles)


def test_limit_on_calls_alone_gives_calls_over_rate() -> None:
    """The case that can be worked out by hand, and that the bench measures with --calls."""
    fixed = {name: Range(low=value, high=value) for name, value in FAST.items()}
    machine = Machine(**{**fixed, "metadata_per_s": Range(low=3000.0, high=3000.0)})
    for nodes in (1, 2, 4):
        (found,) = predict("direct", (nodes,), 1, program=CPU_BUILD, machine=machine, draws=3)
        assert found.middle == pytest.approx(nodes * CPU_BUILD.calls / 3000, rel=0.15, abs=CPU_BUILD.cpu_s)


FAST = {
    "client_per_s": 1e9,
    "call_s": 1e-9,
    "shared_bytes_per_s": 1e15,
    "node_bytes_per_s": 1e15,
    "link_bytes_per_s": 1e15,
    "hop_s": 1e-9,
    "rpc_s": 1e-9,
    "jitter": 1.0,
}


def test_plot_is_svg_that_says_it_is_simulated() -> None:
    text = plot_svg([predict(way, (1, 64, 1024), 12, draws=5) for way in WAYS])
    assert ET.fromstring(text).tag.endswith("svg")
    assert "Simulated, not measured" in text and "Copper-like" in text
