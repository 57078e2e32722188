"""Curves of `bench start` for people: a table for each limit, from which point on each way wins, and charts."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Chart, Series, line_chart, standalone
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.start.curves import (
    AXES,
    FREE,
    WAYS,
    Axis,
    Point,
    axis_text,
    beats_direct_from,
    milder_first,
    point_of,
    quickest,
    waited_s,
)
from windlass.errors import ConfigError

BEGIN, END = "<!-- curves: begin -->", "<!-- curves: end -->"
_SHORT: dict[Axis, str] = {"latency_ms": "latency", "calls_per_s": "calls", "bytes_per_s": "bandwidth"}
_NAMES = {"latency_ms": "latency of a call", "calls_per_s": "calls a second", "bytes_per_s": "bytes a second"}


def curves_text(record: BenchRecord) -> str:
    """The tables, as Markdown."""
    nodes = counted(record.where.nodes, "node")
    lines = [
        f"import {record.options.get('import', '?')} on {nodes}: seconds until the last rank has imported, all that "
        "came before the ranks included"
    ]
    for axis in AXES:
        lines += ["", *_table(record.rows, axis)]
    return "\n".join([*lines, "", *(f"- {_sentence(record.rows, axis)}" for axis in AXES)])


def renewed_curves(page: str, name: str, record: BenchRecord, plot: str) -> str:
    """A page with its generated part made anew: tables, who wins from where, charts. `ConfigError` where there is no
    place for it."""
    before, mark, rest = page.partition(BEGIN)
    _, other, after = rest.partition(END)
    if not mark or not other:
        raise ConfigError(f"the page has no {BEGIN} and {END}", hint="these two lines stand around what is generated")
    command = f"windlass bench start --curves --within 0 --import {record.options.get('import', 'torch')}"
    command += f" --nodes {record.where.nodes} --record {name} \\\n  --page docs/explanation/start-up-curves.md"
    lines = [
        f"Measured: [{name.rpartition('/')[2]}](../../{name}); {' '.join(record.remarks)}. To show a record again:",
        "",
        f"```\n{command} --plot docs/explanation/{plot}\n```",
        "",
        curves_text(record),
        "",
        *(f"![{_NAMES[axis]}]({plot_name(plot, axis)})" for axis in AXES if curves_svg(record, axis)),
    ]
    body = "\n".join(lines)
    return f"{before}{BEGIN}\n{body}\n{END}{after}"


def plot_name(plot: str, axis: Axis) -> str:
    """Of one chart: curves.svg becomes curves-latency.svg and so on."""
    stem, dot, ending = plot.rpartition(".")
    return f"{stem}-{_SHORT[axis]}.{ending}" if dot else f"{plot}-{_SHORT[axis]}.svg"


def _table(rows: Sequence[Measurement], axis: Axis) -> list[str]:
    ways = [way for way in WAYS if any(row.labels["case"] == way for row in rows)]
    lines = [f"| {_NAMES[axis]} | {' | '.join(ways)} | quickest |", "|---|" + "---|" * (len(ways) + 1)]
    for point in milder_first(_points(rows), axis):
        cells = {str(row.labels["case"]): waited_s(row) for row in rows if point_of(row) == point}
        shown = " | ".join(f"{cells[way]:.1f}" if way in cells else "–" for way in ways)
        compared = quickest(cells) if "direct" in cells and len(cells) > 1 else "–"
        lines.append(f"| {_point_name(axis, point)} | {shown} | {compared} |")
    return lines


def _points(rows: Sequence[Measurement]) -> list[Point]:
    return list(dict.fromkeys(point_of(row) for row in rows))


def _point_name(axis: Axis, point: Point) -> str:
    return "no limit" if point == FREE else axis_text(axis, getattr(point, axis))


def _sentence(rows: Sequence[Measurement], axis: Axis) -> str:
    """From which point on each way beats reading the shared file system directly."""
    said = []
    limited = {(row.labels["case"], point_of(row)) for row in rows if point_of(row) != FREE and point_of(row).on(axis)}
    for way in WAYS[1:]:
        if any(case == way and ("direct", point) in limited for case, point in limited):
            first = beats_direct_from(rows, axis, way)
            where = "nowhere" if first is None else f"from {_point_name(axis, first)} on"
            said.append(f"{way} {where.replace('from no limit on', 'everywhere')}")
    return f"{_NAMES[axis]}: quicker than direct: {', '.join(said) or 'nothing was measured beside it'}"


def curves_chart(record: BenchRecord, axis: Axis) -> Chart:
    """The place without a limit is left out, for a logarithmic axis has none for it."""
    points = [point for point in milder_first(_points(record.rows), axis) if point != FREE]
    series = []
    for way in WAYS:
        cells = {point_of(row): waited_s(row) for row in record.rows if row.labels["case"] == way}
        drawn = tuple(sorted((getattr(p, axis), cells[p]) for p in points if p in cells))
        series += [Series(name=way, points=drawn)] if drawn else []
    return Chart(
        title=f"import {record.options.get('import', '?')} on {counted(record.where.nodes, 'node')}, by {_NAMES[axis]}",
        x_name=_NAMES[axis],
        y_name="seconds",
        series=tuple(series),
        ticks=tuple((getattr(p, axis), axis_text(axis, getattr(p, axis))) for p in points),
        x_scale="log",
        y_scale="log",
    )


def curves_svg(record: BenchRecord, axis: Axis) -> str:
    """The chart as a file; empty where no point of the axis was measured."""
    chart = curves_chart(record, axis)
    drawn = line_chart(chart)
    return standalone(chart.title, drawn) if drawn else ""
