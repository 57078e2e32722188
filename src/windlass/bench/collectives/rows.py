"""Run `bench collectives` and make rows from the messages of the first rank."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, cast

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Chart, Series, line_chart
from windlass.bench import measure
from windlass.bench.collectives.options import CollectivesOptions
from windlass.bench.measure import Figure
from windlass.bench.options import to_argument
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References, is_device
from windlass.bench.runner import Bench, Part, PartResult
from windlass.node.sys.text import binary_size


def run(bench: Bench) -> BenchRecord:
    options = bench.options_as(CollectivesOptions)
    result = bench.run(part(options))
    rows = rows_of(result, options) if result else []
    return bench.record(rows, remarks=wrong_remarks(rows))


def part(options: CollectivesOptions, name: str = "collectives", **size: int | None) -> Part:
    return Part(name=name, program="collectives", argument=to_argument(options), **size)


def rows_of(result: PartResult, options: CollectivesOptions) -> list[Measurement]:
    return [measurement(sent, result.plan.world_size, result.plan.nodes) for sent in result.of_kind("row")]


def measurement(sent: dict[str, Any], ranks: int, nodes: int) -> Measurement:
    """Make a row of the record from a rank's message.

    The time is the mean over iterations and ranks, as in nccl-tests. The samples are means over ranks.
    """
    mean = statistics.fmean(sent["time_s"])
    labels = {name: sent[name] for name in ("op", "bytes", "count", "type", "redop", "root", "placement")}
    return Measurement(
        labels={**labels, "ranks": ranks, "nodes": nodes},
        samples={"time_s": tuple(sent["time_s"])},
        figures={
            "time": Figure(value=mean * 1e6, unit="us", formula="mean over iterations and ranks"),
            **bandwidths(sent["op"], sent["bytes"], mean, ranks),
        },
        wrong=sent["wrong"],
    )


def bandwidths(op: str, size_bytes: int, time_s: float, ranks: int) -> dict[str, Figure]:
    """Return algbw and busbw of one measurement. With one rank no link is used, so busbw is 0, as in nccl-tests."""
    named = cast("measure.Collective", "alltoall" if op == "all_to_all" else op)
    return {
        "algbw": measure.algbw(size_bytes, time_s),
        "busbw": measure.busbw(named, size_bytes, time_s, ranks),
    }


def wrong_remarks(rows: Iterable[Measurement]) -> list[str]:
    """Return remarks about wrong results. The bandwidth of wrong numbers is worthless."""
    return [
        f"{row.labels['op']} of {row.labels['bytes']} bytes {row.labels['placement']}: {row.wrong} wrong elements"
        for row in rows
        if row.wrong
    ]


def average_busbw(rows: Iterable[Measurement]) -> float:
    """Return the plain mean of busbw over all sizes and both placements ("Avg bus bandwidth" in nccl-tests).

    It depends on the range of sizes, so it is comparable only between runs over the same sizes.
    """
    return statistics.fmean(row.figures["busbw"].value for row in rows)


def ops_in(record: BenchRecord) -> list[str]:
    return list(dict.fromkeys(str(row.labels["op"]) for row in record.rows))


def squeezed(value: float, width: int) -> str:
    """Format a number in `width` characters: two decimals if they fit, else one or none (the rule of nccl-tests)."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


def time_text(value_us: float) -> str:
    """Format a time in at most five digits, as in the published tables: 105.9, 1074.3, 12174."""
    return f"{value_us:.1f}" if value_us < 10_000 else f"{value_us:.0f}" if value_us < 1e7 else f"{value_us:.1e}"


def _half(row: Measurement | None) -> str:
    if row is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
    wrong = "N/A" if row.wrong is None else str(row.wrong)
    time, alg, bus = (row.figures[name].value for name in ("time", "algbw", "busbw"))
    return f"  {time_text(time):>7}  {squeezed(alg, 6):>6}  {squeezed(bus, 6):>6}  {wrong:>5}"


def table_lines(rows: Sequence[Measurement]) -> list[str]:
    """Return the table of one op: a line per size, with both placements side by side."""
    lines = [
        f"# {'':10}  {'':12}  {'':8}  {'':6}  {'':6}  {'out-of-place':^31}  {'in-place':^31}".rstrip(),
        "#"
        f" {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
        + f"  {'time':>7}  {'algbw':>6}  {'busbw':>6} {'#wrong':>6}"
        * 2,
        f"# {'(B)':>10}  {'(elements)':>12}  {'':8}  {'':6}  {'':6}"
        + f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6} {'':6}"
        + f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}",
    ]
    sizes: dict[tuple[Any, ...], dict[str, Measurement]] = {}
    for row in rows:
        key = tuple(row.labels[name] for name in ("bytes", "count", "type", "redop", "root"))
        sizes.setdefault(key, {})[str(row.labels["placement"])] = row
    for key, placed in sizes.items():
        size, count, kind, redop, root = key
        lines.append(
            f"{size:>12}  {count:>12}  {kind:>8}  {redop:>6}  {root:>6}"
            + _half(placed.get("out-of-place"))
            + _half(placed.get("in-place"))
        )
    return lines


def text(record: BenchRecord) -> str:
    """Return all tables of a record, with the two final lines of nccl-tests."""
    lines: list[str] = []
    for op in ops_in(record):
        rows = [row for row in record.rows if row.labels["op"] == op]
        ranks, nodes = rows[0].labels["ranks"], rows[0].labels["nodes"]
        lines += [
            f"# {op} over {counted(ranks, 'rank')} on {counted(nodes, 'node')} ({record.device.get('name', '?')})"
        ]
        lines += table_lines(rows)
        wrong = sum(row.wrong or 0 for row in rows)
        lines += [
            f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# Avg bus bandwidth    : {average_busbw(rows):.6g}",
            "#",
        ]
    return "\n".join(lines)


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    name = str(record.device.get("name") or "")
    for op in dict.fromkeys(str(row.labels["op"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["op"] == op]
        nodes, ranks = rows[0].labels["nodes"], rows[0].labels["ranks"]
        if ranks == 1:  # no link is used: omit a chart of zeros
            continue
        series = []
        for placement in ("out-of-place", "in-place"):
            points = [(_size(r), r.figures["busbw"].value) for r in rows if r.labels["placement"] == placement]
            series.append(Series(name=placement, points=tuple(sorted(points))))
        published = [
            (float(one.bytes), one.busbw)
            for one in references.bandwidth
            if one.normal and one.op == op and one.nodes == nodes and one.ranks == ranks and is_device(one.device, name)
        ]
        series.append(Series(name="published", points=tuple(sorted(published)), hollow=True))
        what = f"{op} over {counted(ranks, 'rank')} on {counted(nodes, 'node')}: {rows[0].figures['busbw'].formula}"
        made.append((what, _by_size(f"{op}: bus bandwidth by size", series)))
    return made


def _by_size(title: str, series: list[Series]) -> str:
    drawn = tuple(one for one in series if one.points)
    sizes = sorted({x for one in drawn for x, _ in one.points})
    ticks = tuple((x, binary_size(x)) for x in sizes)
    return line_chart(Chart(title=title, x_name="size", y_name="busbw GB/s", series=drawn, ticks=ticks, x_scale="log"))


def _size(row: Measurement) -> float:
    return float(row.labels["bytes"] or 0)
