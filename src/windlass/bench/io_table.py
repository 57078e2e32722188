"""`bench io`: what a file system delivers to the ranks of a node, beside what their devices need."""

from __future__ import annotations

from windlass.bench import measure
from windlass.bench.records import BenchRecord, Figure, Label, Row
from windlass.bench.runner import Outcome
from windlass.bench.sizes import counted

PASS_LINE = 0.9
"""MLPerf Storage's line for image models: the devices must be busy nine tenths of the time."""


def rows_of(outcome: Outcome, *, sample_bytes: int, need_per_device: float | None) -> list[Row]:
    """A row per format and pass, all ranks together: the slowest rank decides how long the samples took."""
    told: dict[tuple[str, str], list[dict[str, object]]] = {}
    for one in outcome.of_kind("row"):
        told.setdefault((str(one["format"]), str(one["pass"])), []).append(one)
    return [_row(key, ranks, outcome, sample_bytes, need_per_device) for key, ranks in told.items()]


def _row(
    key: tuple[str, str], ranks: list[dict[str, object]], outcome: Outcome, sample_bytes: int, need: float | None
) -> Row:
    nodes = outcome.plan.nodes
    total = sum(int(str(one["samples"])) for one in ranks)
    seconds = max(float(str(one["seconds"])) for one in ranks)
    per_node = measure.rate(total / nodes, seconds, unit="samples/s").value
    figures = {
        "samples_per_s": Figure(value=per_node, unit="samples/s", formula="samples of a node / slowest rank's time"),
        "mb_per_s": Figure(value=per_node * sample_bytes / 1e6, unit="MB/s", formula="samples/s * bytes per sample"),
    }
    if need is not None:
        wanted = need * outcome.plan.ranks_per_node
        figures["needed"] = Figure(value=wanted, unit="samples/s", formula="rate of a device * devices of a node")
        figures["fed"] = Figure(value=per_node / wanted, unit="share", formula="delivered / needed")
    times: list[float] = []
    for one in ranks:
        listed = one["sample_s"]
        assert isinstance(listed, list)
        times += [float(value) for value in listed]
    labels: dict[str, Label] = {
        "format": key[0],
        "pass": key[1],
        "bytes": sample_bytes,
        "workers": int(str(ranks[0]["workers"])),
        "ranks": len(ranks),
        "nodes": nodes,
    }
    wrong = sum(int(str(one["wrong"])) for one in ranks)
    return Row(labels=labels, samples={"sample_s": tuple(times)}, figures=figures, wrong=wrong)


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


def feeds(row: Row) -> str:
    """Whether this would keep the devices busy, in words."""
    if "fed" not in row.figures:
        return ""
    share = row.figures["fed"].value
    if share >= 1:
        return f"feeds the devices ({share:.1f} x)"
    if share >= PASS_LINE:
        return f"just feeds them ({share:.0%})"
    return f"devices wait: {share:.0%} of what they need"
