"""`bench scale`: the same case at several sizes, and how much of perfect scaling is left."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.bench import measure
from windlass.bench.records import BenchRecord, Figure, Row
from windlass.bench.verdict import training_rate
from windlass.errors import UsageError


def parse_counts(text: str, flag: str) -> tuple[int, ...]:
    """`1,2,4,8`, smallest first and each once."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{flag} {text!r} is not a list of numbers", hint="write it as in 1,2,4,8") from None
    if counts[0] < 1:
        raise UsageError(f"{flag} {text!r}: numbers must be 1 or more")
    return tuple(counts)


def figure_of(case: str, rows: Sequence[Row]) -> tuple[Row, float, str] | None:
    """The one row and rate per device by which a case is compared between sizes: busbw at the largest size, or the
    training rate of a device."""
    if not rows:
        return None
    if case == "collectives":
        largest = max(int(row.labels["bytes"] or 0) for row in rows)
        best = max((r for r in rows if r.labels["bytes"] == largest), key=lambda r: r.figures["busbw"].value)
        return best, best.figures["busbw"].value, "GB/s busbw"
    value, unit = training_rate(rows[-1])
    return rows[-1], value, unit


def scaled(case: str, measured: Sequence[tuple[Row, float, str]]) -> list[Row]:
    """Rows with total rate and efficiency against the smallest size."""
    if not measured:
        return []
    # One rank moves nothing over a link: its busbw is 0, and nothing can be measured against it.
    first, least, _ = next((one for one in measured if one[1] > 0), measured[0])
    base = float(first.labels["ranks"] or 1)
    found = []
    for row, value, unit in measured:
        ranks = float(row.labels["ranks"] or 1)
        if case == "collectives":
            total, share, how = value, value / least if least else 0.0, "busbw(n) / busbw(smallest)"
            whole = "busbw of the largest size, better placement"
        else:
            total, whole = value * ranks, "rate of a device * ranks"
            kept = measure.scaling_efficiency(total, least * base, ranks / base)
            share, how = kept.value, kept.formula.replace("rate(1)", "rate(smallest)/smallest")
        figures = {
            "rate_per_device": Figure(value=value, unit=unit, formula="median"),
            "rate": Figure(value=total, unit=unit, formula=whole),
            "efficiency": Figure(value=share, unit="share", formula=how),
        }
        found.append(Row(labels=row.labels, samples=row.samples, figures={**row.figures, **figures}, wrong=row.wrong))
    return found


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
