"""Run `bench io`, make rows of the rate that a file system delivers to the ranks of a node, and show them."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Bar, bar_chart
from windlass.bench import measure
from windlass.bench.io.options import IoOptions
from windlass.bench.measure import Figure
from windlass.bench.options import to_argument
from windlass.bench.reading import read_record
from windlass.bench.record import BenchRecord, Label, Measurement
from windlass.bench.reference import References
from windlass.bench.runner import Bench, Part, PartResult
from windlass.bench.verdict import training_rate
from windlass.errors import UsageError


def run(bench: Bench) -> BenchRecord:
    options = bench.options_as(IoOptions)
    base = Path(options.path).expanduser().absolute()
    if not base.is_dir():
        raise UsageError(f"{base} is not a folder", hint="give a folder of the file system that holds your data")
    need = _need(options.need)
    bench.options |= {"path": str(base), "need": need}
    folder = base / f".windlass-io-{secrets.token_hex(8)}"
    try:
        result = bench.run(Part(name="io", program="io", argument=to_argument(options, folder=str(folder))))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = rows_of(result, sample_bytes=options.sample_bytes, need_per_device=need) if result else []
    return bench.record(rows, remarks=_remarks(rows))


def _need(text: str | None) -> float | None:
    """Return samples per second and device, from a number or from the record of an image benchmark."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        record = read_record(text)
        value, unit = max((training_rate(row) for row in record.rows), default=(0.0, ""))
        if unit != "images/s":
            raise UsageError(f"{text} has no images/s", hint="give a record of `windlass bench ddp`") from None
    if value <= 0:
        raise UsageError(
            f"--need {text}: it must be a positive rate", hint="give samples a second of one device, e.g. --need 2500"
        )
    return value


def _remarks(rows: list[Measurement]) -> list[str]:
    poor = [row for row in rows if "fed" in row.figures and row.figures["fed"].value < PASS_LINE]
    cold = [row for row in rows if row.labels["pass"] == "cold"]
    best = max(cold, key=lambda row: row.figures["samples_per_s"].value, default=None)
    if not poor or best is None:
        return []
    return [
        f"{best.labels['format']} is the fastest cold; stage the data to node-local storage where that is not enough"
    ]


def rows_of(result: PartResult, *, sample_bytes: int, need_per_device: float | None) -> list[Measurement]:
    """Return a row per format and pass for all ranks together. The slowest rank determines the time."""
    sent: dict[tuple[str, str], list[dict[str, object]]] = {}
    for one in result.of_kind("row"):
        sent.setdefault((str(one["format"]), str(one["pass"])), []).append(one)
    return [_measurement(key, ranks, result, sample_bytes, need_per_device) for key, ranks in sent.items()]


def _measurement(
    key: tuple[str, str], ranks: list[dict[str, object]], result: PartResult, sample_bytes: int, need: float | None
) -> Measurement:
    nodes = result.plan.nodes
    total = sum(int(str(one["samples"])) for one in ranks)
    seconds = max(float(str(one["seconds"])) for one in ranks)
    per_node = measure.rate(total / nodes, seconds, unit="samples/s").value
    figures = {
        "samples_per_s": Figure(value=per_node, unit="samples/s", formula="samples of a node / slowest rank's time"),
        "mb_per_s": Figure(value=per_node * sample_bytes / 1e6, unit="MB/s", formula="samples/s * bytes per sample"),
    }
    if need is not None:
        wanted = need * result.plan.ranks_per_node
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
    return Measurement(labels=labels, samples={"sample_s": tuple(times)}, figures=figures, wrong=wrong)


PASS_LINE = 0.9
"""MLPerf Storage's threshold for image models: the devices must be busy nine tenths of the time."""


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
    """Return a phrase that states whether this keeps the devices busy."""
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
