"""The generated part of the page about start-up on thousands of nodes: made from one record, between two marks."""

from __future__ import annotations

from collections.abc import Sequence

from startup.measured import StageCosts
from startup.simulate import (
    FANOUT,
    PUBLISHED,
    Draw,
    Machine,
    Predicted,
    Way,
    cold_path,
    depth_of,
    replayed,
)
from windlass.errors import ConfigError

BEGIN, END = "<!-- simulated: begin -->", "<!-- simulated: end -->"
_SIZES = (1, 64, 512, 1024, 2048, 4096, 8192, 16384)


def renewed(page: str, record: str, costs: StageCosts, series: Sequence[Sequence[Predicted]]) -> str:
    """The page with its generated part made anew. `ConfigError` where it has no place for it."""
    before, mark, rest = page.partition(BEGIN)
    _, other, after = rest.partition(END)
    if not mark or not other:
        raise ConfigError(f"the page has no {BEGIN} and {END}", hint="these two lines stand around what is generated")
    parts = (_source_lines(record, costs), _seconds_lines(series), _cold_lines(costs), _stage_lines(costs))
    body = "\n\n".join("\n".join(lines) for lines in (*parts, _replay_lines(costs)))
    return f"{before}{BEGIN}\n{body}\n{END}{after}"


def _source_lines(record: str, costs: StageCosts) -> list[str]:
    name = record.rpartition("/")[2]
    return [
        f"Measured: [{name}](../../{record}), {costs.nodes} nodes on one machine. To renew this part and the chart:",
        "",
        "```",
        f"python bench/simulate_start.py --from {record} \\",
        "  --page docs/explanation/start-up-simulated.md --plot docs/explanation/start-up-simulated.svg",
        "```",
    ]


def _seconds_lines(series: Sequence[Sequence[Predicted]]) -> list[str]:
    table: dict[tuple[Way, int], Predicted] = {(point.way, point.nodes): point for way in series for point in way}
    published = {nodes: f"{lustre:,.0f}, {copper:.0f}" for nodes, lustre, copper in PUBLISHED}
    lines = [
        "Seconds until the last of nodes × 12 ranks has imported torch (10 % – middle – 90 % of 60 draws):",
        "",
        "| nodes | depth | direct | Copper-like | windlass | windlass, with trace | published: Lustre, Copper |",
        "|---|---|---|---|---|---|---|",
    ]
    ways: tuple[Way, ...] = ("direct", "copper", "windlass", "windlass+trace")
    for nodes in _SIZES:
        cells = (_range_text(table[way, nodes]) for way in ways)
        lines.append(f"| {nodes:,} | {depth_of(nodes, FANOUT)} | {' | '.join(cells)} | {published.get(nodes, '')} |")
    return lines


def _range_text(point: Predicted) -> str:
    return f"{point.low:,.0f} – **{point.middle:,.0f}** – {point.high:,.0f}"


def _cold_lines(costs: StageCosts) -> list[str]:
    """Where a cold start's seconds go, with every assumption in the middle of its range."""
    middle = Draw(**{name: getattr(Machine(), name).middle for name in Draw.__slots__})
    lines = [
        "Parts of a cold start without a trace in seconds, with every assumption in the middle of its range:",
        "",
        "| nodes | depth | import | shared file system | misses on the reader | levels of the tree | together |",
        "|---|---|---|---|---|---|---|",
    ]
    for nodes in _SIZES:
        path = cold_path(nodes, costs, middle)
        cells = " | ".join(f"{seconds:.1f}" for seconds in (*path, sum(path)))
        lines.append(f"| {nodes:,} | {depth_of(nodes, FANOUT)} | {cells} |")
    return lines


def _stage_lines(costs: StageCosts) -> list[str]:
    rows = [
        ("one rank's import, every byte in memory", f"{costs.native_s:.2f} s"),
        ("misses of one node that a reader waits for", f"{costs.misses:,.0f}"),
        *((f"one miss: {name}", f"{1000 * seconds:.3f} ms") for name, seconds in costs.parts_s),
        ("one miss: all of that", f"{1000 * costs.miss_s:.3f} ms"),
        ("one miss, for each level of the tree more", f"{1000 * costs.level_s:.3f} ms"),
        ("calls of the one reader, for each object", f"{costs.calls:,.0f}, {costs.calls_per_object:.1f}"),
        ("bytes pushed with a trace", f"{costs.bytes / 1e6:,.0f} MB"),
        (
            "processor seconds of the push: one node alone, the reader with children, another node",
            f"{costs.push_alone_s:.1f}, {costs.push_root_s:.1f}, {costs.push_node_s:.1f} s",
        ),
        ("rate of one hop of the push, by that", f"{costs.hop_bytes_per_s / 1e9:.2f} GB/s"),
    ]
    what = "Measured stages of a miss. Overlapping stages are shares of the wait:"
    return [what, "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _replay_lines(costs: StageCosts) -> list[str]:
    lines = [
        "The model compared with its own record (its sizes, one rank a node, its shared file system):",
        "",
        "| | nodes | measured | simulated |",
        "|---|---|---|---|",
    ]
    return [
        *lines,
        *(f"| {case} | {nodes} | {told:.1f} s | {made:.1f} s |" for case, nodes, told, made in replayed(costs)),
    ]
