"""The same benchmark at several sizes: what did more nodes (or ranks) buy? CASE: collectives, ddp or llm.

Work per device stays the same, so the rate of a device should too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.base.pages.svg import Chart, Series, line_chart
from windlass.bench import ddp, llm, measure
from windlass.bench.collectives import rows as collectives
from windlass.bench.collectives.options import CollectivesOptions
from windlass.bench.ddp import DdpOptions
from windlass.bench.llm import LlmCaseOptions, usual_choices
from windlass.bench.measure import Figure
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References
from windlass.bench.runner import Bench
from windlass.bench.verdict import training_rate
from windlass.errors import UsageError

# Options and rows of the cases that can be scaled.
SCALED: dict[str, tuple[type, Any]] = {
    "collectives": (CollectivesOptions, collectives),
    "ddp": (DdpOptions, ddp),
    "llm": (LlmCaseOptions, llm),
}


def run(bench: Bench, case: str, counts: Sequence[int], *, by_nodes: bool) -> BenchRecord:
    """Plan every size before the first measurement, so that an impossible size is rejected at once."""
    _options(case, bench.asked, 1)  # also rejects invalid options
    bench.options |= {"case": case, "sizes": list(counts)}
    each = bench.request.ranks_per_node or (bench.size()[1] if by_nodes else None)
    sizes = [(count, each) if by_nodes else (1, count) for count in counts]
    for nodes, ranks in sizes:
        bench.size(nodes=nodes, ranks_per_node=ranks)
    measured = []
    rows = SCALED[case][1]
    for nodes, ranks in sizes:
        world_size = nodes * (ranks or 1)
        options = _options(case, bench.asked, world_size)
        part = rows.part(options, f"{case}-{nodes}n{world_size}r", nodes=nodes, ranks_per_node=ranks)
        result = bench.run(part, alone=False)
        found = figure_of(case, rows.rows_of(result, options)) if result else None
        measured += [found] if found else []
        if bench.interrupted:
            break
    return bench.record(scaled(case, measured))


def _options(case: str, asked: dict[str, Any], ranks: int) -> Any:
    return usual_choices(asked, ranks) if case == "llm" else SCALED[case][0](**asked)


def parse_counts(text: str, flag: str) -> tuple[int, ...]:
    """Parse `1,2,4,8`: smallest first, each number once."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{flag} {text!r} is not a list of numbers", hint="write it as in 1,2,4,8") from None
    if counts[0] < 1:
        raise UsageError(f"{flag} {text!r}: numbers must be 1 or more", hint="e.g. 1,2,4")
    return tuple(counts)


def figure_of(case: str, rows: Sequence[Measurement]) -> tuple[Measurement, float, str] | None:
    """Return the row and the rate per device that are compared between sizes.

    This is busbw at the largest size, or the training rate of a device.
    """
    if not rows:
        return None
    if case == "collectives":
        largest = max(int(row.labels["bytes"] or 0) for row in rows)
        best = max((r for r in rows if r.labels["bytes"] == largest), key=lambda r: r.figures["busbw"].value)
        return best, best.figures["busbw"].value, "GB/s busbw"
    value, unit = training_rate(rows[-1])
    return rows[-1], value, unit


def scaled(case: str, measured: Sequence[tuple[Measurement, float, str]]) -> list[Measurement]:
    """Return measurements with total rate and efficiency relative to the smallest size."""
    if not measured:
        return []
    # One rank uses no link, so its busbw is 0 and cannot be the base of a comparison.
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
        found.append(msgspec.structs.replace(row, figures={**row.figures, **figures}))
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
