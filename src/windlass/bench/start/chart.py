"""Charts of `bench start`: seconds by case and nodes, and the simulated prediction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Bar, Chart, Series, bar_chart, line_chart, standalone
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References
from windlass.bench.start.curves import AXES
from windlass.bench.start.curves_text import curves_chart
from windlass.bench.start.simulate import PUBLISHED, Predicted
from windlass.bench.start.table import is_push

_NAMES = {"direct": "direct", "copper": "Copper-like", "windlass": "windlass", "windlass+trace": "windlass, with trace"}


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    if record.options.get("curves"):
        return [
            (chart.title, drawn) for chart in map(partial(curves_chart, record), AXES) if (drawn := line_chart(chart))
        ]
    bars = [
        Bar(
            name=f"{row.labels['case']}, {counted(row.labels['nodes'], 'node')}",
            value=row.figures["seconds"].value,
            text=f"{row.figures['seconds'].value:.2f}",
        )
        for row in record.rows
    ]
    what = "the last node has the file" if bars and is_push(record.rows[0]) else "the last rank has imported"
    return [(f"seconds until {what}, median", bar_chart("start", "s", bars))]


def plot_svg(series: Sequence[Sequence[Predicted]]) -> str:
    """The prediction as a file: a line and a band for each way, dots for what was published; both axes logarithmic."""
    sizes = sorted({point.nodes for way in series for point in way})
    lines = [
        Series(
            name=_NAMES[way[0].way],
            points=tuple((float(p.nodes), p.middle) for p in way),
            band=tuple((float(p.nodes), p.low, p.high) for p in way),
        )
        for way in series
    ]
    for name, which in (("published, Lustre", 1), ("published, Copper", 2)):
        points = tuple((float(row[0]), row[which]) for row in PUBLISHED if sizes[0] <= row[0] <= sizes[-1])
        lines += [Series(name=name, points=points, hollow=True)] if points else []
    chart = Chart(
        title="Simulated, not measured: start of `import torch`, 12 ranks a node (band: 10 % to 90 % of the draws)",
        x_name="nodes (times 12 ranks)",
        y_name="seconds",
        series=tuple(lines),
        ticks=tuple((float(nodes), f"{nodes:,}") for nodes in sizes),
        x_scale="log",
        y_scale="log",
    )
    return standalone(chart.title, line_chart(chart))
