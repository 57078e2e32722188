"""Charts of `bench scale`: rate and efficiency by ranks."""

from __future__ import annotations

from windlass.base.pages.svg import Chart, Series, line_chart
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
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
