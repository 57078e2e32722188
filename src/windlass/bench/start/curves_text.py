"""Curves of `bench start` for people: a table for each limit, from which point on each way wins, and charts."""

from __future__ import annotations

from collections.abc import Sequence

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
from windlass.notation.counts import counted
from windlass.pages.svg import Chart, Series, line_chart, standalone

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
    return "\n".join([*lines, "", *(_sentence(record.rows, axis) for axis in AXES)])


def _table(rows: Sequence[Measurement], axis: Axis) -> list[str]:
    ways = [way for way in WAYS if any(row.labels["case"] == way for row in rows)]
    lines = [f"| {_NAMES[axis]} | {' | '.join(ways)} | quickest |", "|---|" + "---|" * (len(ways) + 1)]
    for point in milder_first(_points(rows), axis):
        cells = {str(row.labels["case"]): waited_s(row) for row in rows if point_of(row) == point}
        shown = " | ".join(f"{cells[way]:.1f}" if way in cells else "–" for way in ways)
        lines.append(f"| {_point_name(axis, point)} | {shown} | {quickest(cells)} |")
    return lines


def _points(rows: Sequence[Measurement]) -> list[Point]:
    return list(dict.fromkeys(point_of(row) for row in rows))


def _point_name(axis: Axis, point: Point) -> str:
    return "no limit" if point == FREE else axis_text(axis, getattr(point, axis))


def _sentence(rows: Sequence[Measurement], axis: Axis) -> str:
    """From which point on each way beats reading the shared file system directly."""
    said = []
    for way in WAYS[1:]:
        if any(row.labels["case"] == way for row in rows):
            first = beats_direct_from(rows, axis, way)
            where = "nowhere" if first is None else f"from {_point_name(axis, first)} on"
            said.append(f"{way} {where.replace('from no limit on', 'everywhere')}")
    return f"{_NAMES[axis]}: quicker than direct: {', '.join(said) or 'nothing else was measured'}"


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
