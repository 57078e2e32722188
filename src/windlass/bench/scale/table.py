"""The table of `bench scale`: rate, total and efficiency by size."""

from __future__ import annotations

from windlass.bench.record import BenchRecord


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
