"""The table and the chart of `bench io`."""

from __future__ import annotations

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Bar, bar_chart
from windlass.bench import measure
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References

PASS_LINE = 0.9
"""MLPerf Storage's line for image models: the devices must be busy nine tenths of the time."""


def text(record: BenchRecord) -> str:
    first = record.rows[0].labels
    lines = [
        f"reading samples of {first['bytes']} bytes with {counted(first['ranks'], 'rank')} x "
        f"{counted(first['workers'], 'worker')} on {counted(first['nodes'], 'node')}; figures of one node",
        f"{'format':<10} {'pass':<5} {'samples/s':>10} {'MB/s':>9} {'p50':>9} {'p95':>9} {'needed':>9}   ",
    ]
    for row in record.rows:
        figures, times = row.figures, row.samples["sample_s"]
        needed = f"{figures['needed'].value:,.0f}" if "needed" in figures else "-"
        lines.append(
            f"{row.labels['format']:<10} {row.labels['pass']:<5} {figures['samples_per_s'].value:>10,.0f} "
            f"{figures['mb_per_s'].value:>9,.1f} {measure.percentile(times, 50) * 1e3:>6.2f} ms "
            f"{measure.percentile(times, 95) * 1e3:>6.2f} ms {needed:>9}   {feeds(row)}"
        )
    return "\n".join(line.rstrip() for line in lines)


def feeds(row: Measurement) -> str:
    """Whether this would keep the devices busy, in words."""
    if "fed" not in row.figures:
        return ""
    share = row.figures["fed"].value
    if share >= 1:
        return f"feeds the devices ({share:.1f} x)"
    if share >= PASS_LINE:
        return f"just feeds them ({share:.0%})"
    return f"devices wait: {share:.0%} of what they need"


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
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
