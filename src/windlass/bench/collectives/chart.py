"""Charts of `bench collectives`: bus bandwidth by size, published figures drawn in where they are of the same class."""

from __future__ import annotations

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Chart, Series, line_chart
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References, is_device
from windlass.bench.sizes import size_text


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    name = str(record.device.get("name") or "")
    for op in dict.fromkeys(str(row.labels["op"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["op"] == op]
        nodes, ranks = rows[0].labels["nodes"], rows[0].labels["ranks"]
        if ranks == 1:  # nothing crosses a link: a chart of zeros would say less than none
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


def compared(a: BenchRecord, b: BenchRecord) -> list[tuple[str, str]]:
    """Both records in one drawing, the better placement of each size."""
    made = []
    for op in dict.fromkeys(str(row.labels["op"]) for row in a.rows):
        series = [Series(name=name, points=_best(record, op)) for name, record in (("A", a), ("B", b))]
        made.append((f"{op}: the better placement of each size", _by_size(f"{op}: A and B", series)))
    return made


def published(references: References) -> list[tuple[str, str]]:
    """Published bus bandwidth by size: systems with figures at several sizes."""
    systems: dict[str, list[tuple[float, float]]] = {}
    for one in references.bandwidth:
        if one.normal and one.op == "all_reduce":
            name = f"{one.device} {one.nodes}n {one.algorithm or one.source.rpartition('/')[2]}"
            systems.setdefault(name, []).append((float(one.bytes), one.busbw))
    series = [Series(name=name, points=tuple(sorted(points))) for name, points in systems.items() if len(points) > 2]
    what = "all_reduce: systems with figures at three sizes and more"
    return [(what, _by_size("published all_reduce bandwidth", series))]


def _by_size(title: str, series: list[Series]) -> str:
    drawn = tuple(one for one in series if one.points)
    sizes = sorted({x for one in drawn for x, _ in one.points})
    ticks = tuple((x, size_text(x)) for x in sizes)
    return line_chart(Chart(title=title, x_name="size", y_name="busbw GB/s", series=drawn, ticks=ticks, x_scale="log"))


def _size(row: Measurement) -> float:
    return float(row.labels["bytes"] or 0)


def _best(record: BenchRecord, op: str) -> tuple[tuple[float, float], ...]:
    best: dict[float, float] = {}
    for row in record.rows:
        if row.labels["op"] == op:
            best[_size(row)] = max(best.get(_size(row), 0.0), row.figures["busbw"].value)
    return tuple(sorted(best.items()))
