"""The simulated start-up as a chart."""

from __future__ import annotations

from collections.abc import Sequence

from startup.simulate import PUBLISHED, Predicted
from windlass.base.pages.svg import Chart, Series, line_chart, standalone

_NAMES = {"direct": "direct", "copper": "Copper-like", "windlass": "windlass", "windlass+trace": "windlass, with trace"}


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
