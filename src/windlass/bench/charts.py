"""Which charts a record asks for: one idea per case, published figures drawn in where they are of the same class."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.bench import compare, measure
from windlass.bench.records import BenchRecord, Row
from windlass.bench.reference import References, is_device
from windlass.bench.sizes import counted, size_text
from windlass.bench.svg import Bar, Chart, Series, bar_chart, line_chart


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    """(caption, svg) of every chart of this record."""
    makers = {
        "collectives": _collectives,
        "matmul": _matmul,
        "ddp": _ddp,
        "synthetic": _synthetic,
        "io": _io,
        "scale": _scale,
    }
    made = makers.get(record.case, _training)(record, references)
    return [(caption, svg) for caption, svg in made if svg]


def _collectives(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    name = str(record.device.get("name") or "")
    for op in dict.fromkeys(str(row.labels["op"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["op"] == op]
        nodes, ranks = rows[0].labels["nodes"], rows[0].labels["ranks"]
        if ranks == 1:  # nothing crosses a link: a chart of zeros would say less than none
            continue
        series = []
        for placement in ("out-of-place", "in-place"):
            points = [(_bytes(r), r.figures["busbw"].value) for r in rows if r.labels["placement"] == placement]
            if points:
                series.append(Series(name=placement, points=tuple(sorted(points))))
        published = [
            (float(one.bytes), one.busbw)
            for one in references.bandwidth
            if one.normal and one.op == op and one.nodes == nodes and one.ranks == ranks and is_device(one.device, name)
        ]
        if published:
            series.append(Series(name="published", points=tuple(sorted(published)), hollow=True))
        places = sorted({x for one in series for x, _ in one.points})
        chart = Chart(
            title=f"{op}: bus bandwidth by size",
            x_name="size",
            y_name="busbw GB/s",
            series=tuple(series),
            ticks=tuple((x, size_text(x)) for x in places),
            x_scale="log",
        )
        made.append(
            (
                f"{op} over {counted(ranks, 'rank')} on {counted(nodes, 'node')}: {rows[0].figures['busbw'].formula}",
                line_chart(chart),
            )
        )
    return made


def _bytes(row: Row) -> float:
    return float(row.labels["bytes"] or 0)


def _matmul(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    bars = [
        Bar(
            name=str(row.labels["type"]) + (f" rank {row.labels['rank']}" if row.labels.get("rank") else ""),
            value=row.figures["sustained"].value,
            text=f"{row.figures['sustained'].value:.4g}",
            mark=row.figures["burst"].value,
        )
        for row in record.rows
    ]
    return [("sustained rate of matrix products [2*m*n*k]", bar_chart("matmul", "TFLOP/s", bars, "burst"))]


def _ddp(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for model in dict.fromkeys(str(row.labels["model"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["model"] == model]
        alone = next((row for row in rows if row.labels["parallel"] == "none"), None)
        spread = [row for row in rows if row.labels["parallel"] != "none"]
        if not spread:
            continue
        if len(spread) == 1:  # one point is no curve
            made.append((f"{model}: examples per second and device, median", _ddp_bars(model, rows)))
            continue
        lines = []
        for percent in (50, 95):
            points = [
                (float(r.labels["ranks"] or 1), _batch(r) / measure.percentile(r.samples["step_s"], percent))
                for r in spread
            ]
            lines.append(Series(name=f"p{percent}", points=tuple(points)))
        level = None
        if alone is not None:
            rate = _batch(alone) / measure.percentile(alone.samples["step_s"], 50)
            level = (rate, f"no ddp: {rate:,.0f}")
        chart = Chart(
            title=f"{model}: examples per second and device by ranks",
            x_name="ranks",
            y_name="ex/s per device",
            series=tuple(lines),
            ticks=tuple((float(r.labels["ranks"] or 1), str(r.labels["ranks"])) for r in spread),
            x_scale="log",
            level=level,
        )
        made.append((f"{model}: what is left of one device's rate as ranks join", line_chart(chart)))
    return made


def _ddp_bars(model: str, rows: Sequence[Row]) -> str:
    rates = [(str(row.labels["label"]), _batch(row) / measure.percentile(row.samples["step_s"], 50)) for row in rows]
    bars = [Bar(name=name, value=rate, text=f"{rate:,.0f}") for name, rate in rates]
    return bar_chart(f"{model}: examples per second and device", "ex/s", bars)


def _batch(row: Row) -> float:
    return float(row.labels["batch"] or 0)


def _series_of_samples(name: str, values: tuple[float, ...]) -> Series:
    return Series(name=name, points=tuple((float(at), value) for at, value in enumerate(values)))


def _synthetic(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for row in record.rows:
        rates = row.samples["images_per_s_per_device"]
        mean = row.figures["images_per_s_per_device"].value
        chart = Chart(
            title="images per second and device, by round",
            x_name="round",
            y_name="images/s per device",
            series=(_series_of_samples(str(row.labels["engine"]), rates),),
            ticks=tuple((float(at), str(at)) for at in range(len(rates))),
            level=(mean, f"mean {mean:,.1f}"),
        )
        made.append((f"{row.labels['model']}, batch {row.labels['batch']}: every round", line_chart(chart)))
    return made


def _training(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for row in record.rows:
        steps = tuple(value * 1e3 for value in row.samples.get("step_s", ()))
        for name, unit, values in (("step time", "ms", steps), ("loss", "loss", row.samples.get("loss", ()))):
            chart = Chart(
                title=f"{row.labels.get('model')}: {name}",
                x_name="sample" if name == "step time" else "step",
                y_name=f"{name} ({unit})" if unit != name else name,
                series=(_series_of_samples(name, values),),
                ticks=tuple((float(at), str(at)) for at in range(0, len(values), max(1, len(values) // 8))),
                y_from_zero=name != "loss",
            )
            made.append((f"{row.labels.get('model')} {row.labels.get('precision')}: {name}", line_chart(chart)))
    return made


def _io(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    bars = [
        Bar(
            name=f"{row.labels['format']} {row.labels['pass']}",
            value=row.figures["samples_per_s"].value,
            text=f"{row.figures['samples_per_s'].value:,.0f}",
            mark=row.figures["needed"].value if "needed" in row.figures else None,
        )
        for row in record.rows
    ]
    return [
        ("samples delivered per second by one node", bar_chart("input", "samples/s", bars, "what the devices need"))
    ]


def _scale(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    rows = [row for row in record.rows if "efficiency" in row.figures]
    made = []
    for figure, unit, level in (("rate", "", None), ("efficiency", "share", (1.0, "perfect"))):
        points = tuple((float(row.labels["ranks"] or 1), row.figures[figure].value) for row in rows)
        if points:
            name = rows[0].figures[figure].unit if not unit else "efficiency"
            chart = Chart(
                title=f"{figure} by ranks",
                x_name="ranks",
                y_name=name,
                series=(Series(name=str(record.options.get("case", "measured")), points=points),),
                ticks=tuple(
                    (float(r.labels["ranks"] or 1), f"{r.labels['ranks']} ({r.labels['nodes']}n)") for r in rows
                ),
                x_scale="log",
                level=level,
            )
            made.append((f"{figure} [{rows[0].figures[figure].formula}]", line_chart(chart)))
    return made


def compare_charts(a: BenchRecord, b: BenchRecord) -> list[tuple[str, str]]:
    """Both records in one drawing: busbw by size, or how much faster each case of B is."""
    if a.case == b.case == "collectives":
        made = []
        for op in dict.fromkeys(str(row.labels["op"]) for row in a.rows):
            pair = [Series(name=name, points=_best(record, op)) for name, record in (("A", a), ("B", b))]
            series = tuple(one for one in pair if one.points)
            places = sorted({x for one in series for x, _ in one.points})
            chart = Chart(
                title=f"{op}: A and B",
                x_name="size",
                y_name="busbw GB/s",
                series=series,
                ticks=tuple((x, size_text(x)) for x in places),
                x_scale="log",
            )
            made.append((f"{op}: the better placement of each size", line_chart(chart)))
        return made
    found = compare.compare(a, b).differences
    bars = [
        Bar(name=_cut(compare.label_text(one.labels)), value=1 + one.change, text=f"{1 + one.change:.2f}", mark=1.0)
        for one in found
    ]
    return (
        [("speed of B over speed of A", bar_chart("speed of B over speed of A", "x", bars, "as fast as A"))]
        if bars
        else []
    )


def _cut(name: str, most: int = 22) -> str:
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"


def _best(record: BenchRecord, op: str) -> tuple[tuple[float, float], ...]:
    best: dict[float, float] = {}
    for row in record.rows:
        if row.labels["op"] == op:
            best[_bytes(row)] = max(best.get(_bytes(row), 0.0), row.figures["busbw"].value)
    return tuple(sorted(best.items()))


def reference_charts(references: References) -> list[tuple[str, str]]:
    """Published bus bandwidth by size: systems with figures at several sizes."""
    systems: dict[str, list[tuple[float, float]]] = {}
    for one in references.bandwidth:
        if one.normal and one.op == "all_reduce":
            name = f"{one.device} {one.nodes}n {one.algorithm or one.source.rpartition('/')[2]}"
            systems.setdefault(name, []).append((float(one.bytes), one.busbw))
    series = tuple(
        Series(name=name, points=tuple(sorted(points))) for name, points in systems.items() if len(points) > 2
    )
    places = sorted({x for one in series for x, _ in one.points})
    chart = Chart(
        title="published all_reduce bandwidth",
        x_name="size",
        y_name="busbw GB/s",
        series=series,
        ticks=tuple((x, size_text(x)) for x in places),
        x_scale="log",
    )
    return [("all_reduce: systems with figures at three sizes and more", line_chart(chart))]
