"""The simulator: pure, seeded, and held against what was published."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from startup.chart import plot_svg
from startup.measured import StageCosts, stage_costs
from startup.page import renewed
from startup.simulate import (
    CPU_BUILD,
    FANOUT,
    PUBLISHED,
    WAYS,
    Draw,
    Events,
    Machine,
    Predicted,
    Range,
    Server,
    cold_path,
    depth_of,
    predict,
    replayed,
)
from windlass.bench.reading import read_record
from windlass.errors import ConfigError

ROOT = Path(__file__).parents[4]
RECORDS = sorted((ROOT / "results" / "start").glob("stages-*.json"))
PAGE = ROOT / "docs" / "explanation" / "start-up-simulated.md"
SIZES = (1, 64, 1024, 8192, 16384)
Series = dict[str, list[Predicted]]


@pytest.fixture(scope="module")
def costs() -> StageCosts:
    """Of the record that the page names."""
    name = PAGE.read_text().partition("--from ")[2].split()[0]
    return stage_costs(read_record(ROOT / name), FANOUT)


@pytest.fixture(scope="module")
def series(costs: StageCosts) -> Series:
    """Every way at the published sizes and those of the page; drawn once for all tests."""
    sizes = sorted({*(nodes for nodes, *_ in PUBLISHED), *SIZES})
    return {way: predict(way, sizes, 12, costs=costs) for way in WAYS}


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
def test_published_times_lie_in_or_near_the_range(way: str, series: Series) -> None:
    """Near: within half of the range's end. The range is for one machine, the table for another day of it."""
    for nodes, lustre, copper in PUBLISHED:
        (range_,) = (point for point in series[way] if point.nodes == nodes)
        seconds = lustre if way == "direct" else copper
        assert 0.6 * range_.low <= seconds <= 1.5 * range_.high, (nodes, seconds, range_)


def test_direct_grows_with_the_nodes_and_the_others_hardly_do(series: Series) -> None:
    at = {way: {point.nodes: point for point in points} for way, points in series.items()}
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
    "core": 1.0,
    "many_ranks": 1.0,
    "fabric_s": 1e-9,
}


def test_plot_is_svg_that_says_it_is_simulated(costs: StageCosts) -> None:
    text = plot_svg([predict(way, (1, 64, 1024), 12, draws=5, costs=costs) for way in WAYS])
    assert ET.fromstring(text).tag.endswith("svg")
    assert "Simulated, not measured" in text and "Copper-like" in text


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_record_of_stages_can_be_simulated_and_comes_out_near_itself(path: Path) -> None:
    """Within half and twice: the model leaves out what nodes of one machine take from each other."""
    found = stage_costs(read_record(path), FANOUT)
    assert found.miss_s > 0 and found.hop_bytes_per_s > 0
    for case, nodes, measured, simulated in replayed(found):
        assert measured / 2 < simulated < 2 * measured, (case, nodes)


def test_a_wait_is_the_sum_of_its_stages_and_levels_add_with_the_depth(costs: StageCosts) -> None:
    given = Draw(**{name: getattr(Machine(), name).middle for name in Draw.__slots__})
    paths = {nodes: cold_path(nodes, costs, given) for nodes in (1, 4, 64, 8192)}
    assert paths[1].levels == 0
    one = paths[4].levels / depth_of(4, FANOUT)
    for nodes, path in paths.items():
        assert path.levels == pytest.approx(one * depth_of(nodes, FANOUT))
        assert path[:3] == paths[1][:3], "only the levels depend on the nodes"


def test_a_record_without_stages_is_refused() -> None:
    with pytest.raises(ConfigError, match="no"):
        stage_costs(read_record(ROOT / "results" / "start" / "staged-archive.json"), FANOUT)


def test_the_page_is_what_its_own_command_makes(costs: StageCosts, series: Series) -> None:
    page = PAGE.read_text()
    name = page.partition("--from ")[2].split()[0]
    assert renewed(page, name, costs, list(series.values())) == page, "run the command that the page names"
    with pytest.raises(ConfigError, match="has no"):
        renewed("a page", name, costs, list(series.values()))
