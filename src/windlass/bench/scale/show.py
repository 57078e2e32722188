"""The table and the charts of `bench scale`."""

from __future__ import annotations

from windlass.base.pages.svg import Chart, Series, line_chart
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References


def text(record: BenchRecord) -> str:
    unit = record.rows[0].figures["rate"].unit
    formula = record.rows[0].figures["efficiency"].formula
    lines = [
        f"{record.options.get('case', 'case')} at several sizes on {record.device.get('name', 'unknown device')}; "
        f"efficiency = {formula}",
        f"{'nodes':>5} {'ranks':>6} {'per device':>14} {'in all':>16} {'efficiency':>11}   {unit}",
    ]
    for row in record.rows:
        each, whole, share = (row.figures[name].value for name in ("rate_per_device", "rate", "efficiency"))
        lines.append(
            f"{row.labels['nodes']:>5} {row.labels['ranks']:>6} {_number(each):>14} {_number(whole):>16} {share:>11.1%}"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


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
