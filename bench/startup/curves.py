"""Curves of `bench/start.py`: the ways to start against what the shared file system can do, one limit at a time.

Every way is measured without limits first. Of the rest, what should be quick comes first, each point with all of its
ways, so that a sweep that may take only so long has as much as it can to compare; what would take longer than is left
is not begun. A sweep that is stopped goes on where it was: what its record has is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from startup.cases import StartSetup, measure
from startup.rows import measurement
from startup.shared import Limits
from windlass.base.notation.counts import counted, size_text
from windlass.base.pages.svg import Chart, Series, line_chart, standalone
from windlass.bench.record import BenchRecord, Measurement

Axis = Literal["latency_ms", "calls_per_s", "bytes_per_s"]
AXES: tuple[Axis, ...] = ("latency_ms", "calls_per_s", "bytes_per_s")
WAYS = ("direct", "cache", "cache+trace", "stage")
_SIDE_BY_SIDE = {"direct": 1, "cache": 2, "cache+trace": 8, "stage": 8}
"""How many calls of one reader are about under way at a time; only for estimates of what a point will take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What the shared file system can do for all nodes together. Zero: no limit."""

    latency_ms: float = 0.0
    calls_per_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def limits(self) -> Limits:
        return Limits(
            latency_s=self.latency_ms / 1000, calls_per_s=self.calls_per_s, bytes_per_s=float(self.bytes_per_s)
        )

    def on(self, axis: Axis) -> bool:
        """Whether this point lies on an axis: no other limit than that one."""
        return all(getattr(self, other) == 0 for other in AXES if other != axis)


FREE = Point()


def sweep(latencies_ms: Sequence[float], rates: Sequence[float], bandwidths: Sequence[float]) -> tuple[Point, ...]:
    """All points, the one without limits first."""
    found = [FREE, *(Point(latency_ms=value) for value in latencies_ms), *(Point(calls_per_s=rate) for rate in rates)]
    return tuple(dict.fromkeys([*found, *(Point(bytes_per_s=value) for value in bandwidths)]))


def point_of(row: Measurement) -> Point:
    return Point(**{axis: float(row.labels.get(axis) or 0.0) for axis in AXES})


def waited_s(row: Measurement) -> float:
    """Seconds until the last rank has imported, all that came before the ranks included."""
    before = row.figures["ready_seconds"].value if str(row.labels["case"]).startswith("cache") else 0.0
    return row.figures["seconds"].value + before


def estimate_s(row: Measurement, point: Point) -> float:
    """About how long a way takes at a point, from its row without limits. To plan with, and never told as a result."""
    calls, size = row.figures["shared_calls"].value, row.figures["shared_bytes"].value
    case, nodes = str(row.labels["case"]), int(row.labels["nodes"] or 1)
    waits = calls / (nodes if case == "direct" else 1) / _SIDE_BY_SIDE[case] * point.latency_ms / 1000
    queue = calls / point.calls_per_s if point.calls_per_s else 0.0
    moved = size / point.bytes_per_s if point.bytes_per_s else 0.0
    return 1.2 * (waited_s(row) + waits + max(queue, moved)) + 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What is measured: points, ways, nodes, and how long it may take in all."""

    points: tuple[Point, ...]
    ways: tuple[str, ...]
    nodes: int
    ranks: int
    within_s: float


def measure_curves(
    setup: StartSetup,
    wanted: Sweep,
    known: Sequence[Measurement],
    tell: Callable[[str], None],
    keep: Callable[[Sequence[Measurement]], object],
) -> tuple[list[Measurement], list[str]]:
    """All rows, those that were known included, and which points were not measured. `keep` gets the rows after each."""
    end = time.monotonic() + wanted.within_s
    rows = list(known)
    have = {(str(row.labels["case"]), point_of(row)) for row in rows}
    missing: list[str] = []

    def one(way: str, point: Point) -> None:
        setup.limits = point.limits
        tell(f"{way} at {point_text(point)}")
        (found,) = measure(setup, (way,), (wanted.nodes,), wanted.ranks, 1, lambda _: None)
        if found.seconds is None:
            missing.append(f"{way} at {point_text(point)}: {found.not_measured}")
            return
        rows.append(measurement({**asdict(found), **asdict(point)}))
        keep(rows)

    for way in wanted.ways:
        if (way, FREE) not in have and time.monotonic() < end:
            one(way, FREE)
    free = {str(row.labels["case"]): row for row in rows if point_of(row) == FREE}
    left = [(way, point) for point in wanted.points for way in wanted.ways if (way, point) not in have]
    left = [(way, point) for way, point in left if point != FREE]
    missing += [f"{way}: there was no time for it without limits" for way in wanted.ways if way not in free]
    for estimate, way, point in quick_points_first([each for each in left if each[0] in free], free):
        if time.monotonic() + estimate > end:
            missing.append(f"{way} at {point_text(point)}: would take about {estimate:.0f} s, more than was left")
        else:
            one(way, point)
    return rows, missing


def quick_points_first(
    left: Iterable[tuple[str, Point]], free: Mapping[str, Measurement]
) -> list[tuple[float, str, Point]]:
    """With what each should take. All ways of a point stand together: one alone has nothing to be compared with."""
    estimates = [(estimate_s(free[way], point), way, point) for way, point in left]
    totals: dict[Point, float] = {}
    for estimate, _, point in estimates:
        totals[point] = totals.get(point, 0.0) + estimate
    return sorted(estimates, key=lambda each: (totals[each[2]], each[0]))


def point_text(point: Point) -> str:
    shown = [axis_text(axis, getattr(point, axis)) for axis in AXES if getattr(point, axis)]
    return ", ".join(shown) or "no limit"


def axis_text(axis: Axis, value: float) -> str:
    if axis == "latency_ms":
        return f"{value:g} ms"
    return f"{value:,.0f} calls/s" if axis == "calls_per_s" else f"{size_text(value)}/s"


def milder_first(points: Iterable[Point], axis: Axis) -> list[Point]:
    """The points of an axis from the quickest file system to the slowest; no limit stands first."""
    sign = 1 if axis == "latency_ms" else -1
    return sorted((p for p in points if p.on(axis)), key=lambda p: (p != FREE, sign * getattr(p, axis)))


def quickest(cells: Mapping[str, float]) -> str:
    """The way that took least, by name; empty where nothing was measured."""
    return min(cells, key=lambda way: cells[way], default="")


def beats_direct_from(rows: Sequence[Measurement], axis: Axis, way: str) -> Point | None:
    """The mildest point from which on a way took less than direct reading wherever both were measured; None where it
    did not at the slowest of these."""
    table = {(str(row.labels["case"]), point_of(row)): waited_s(row) for row in rows}
    first = None
    for point in reversed(milder_first({point for _, point in table}, axis)):
        if (way, point) not in table or ("direct", point) not in table:
            continue
        if table[way, point] >= table["direct", point]:
            break
        first = point
    return first


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
