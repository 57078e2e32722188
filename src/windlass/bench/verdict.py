"""Compare a record with published figures and return findings.

`docs/explanation/bandwidth-and-utilisation.md` has the reasons for the thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.base.notation.counts import counted
from windlass.bench import measure
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import Bandwidth, Rate, References, ceiling_of, is_device
from windlass.model.finding import Finding, Severity
from windlass.node.sys.text import binary_size

NORMAL = 0.8
"""Share of a published figure from which a measurement counts as normal."""
LOW = 0.7
TCP = 0.2
"""A share of the published figure below this means another transport, not bad tuning: TCP costs 10 to 25 times."""
TCP_LATENCY_US = 45.0
_UNSAID: dict[str, str | int] = {"checkpointing": "none", "accumulation": 1, "gradients": "fp32"}
"""Labels that a row omits if they have the usual value."""
_SMALL = 1024
_LARGE = 1 << 20


def judge(record: BenchRecord, references: References) -> list[Finding]:
    """Return the findings about a record. For a CPU only wrong results count, because no such figures are published."""
    name = str(record.device.get("name") or "")
    found = [
        Finding(
            "wrong-results",
            "error",
            f"results are wrong ({row.wrong} elements of {_which(row)}): the speed means nothing",
        )
        for row in record.rows
        if row.wrong
    ]
    if record.device.get("kind") == "cpu":
        return found
    if record.case == "collectives":
        found += _collectives(record, name, references)
    elif record.case == "matmul":
        found += _matmul(record, name, references)
    elif record.case in {"ddp", "llm", "resnet"}:
        found += _training(record, name, references)
    return found


def _grade(normal: bool) -> tuple[str, Severity]:
    """Return the grade and the severity of a figure."""
    return ("normal", "ok") if normal else ("low", "warning")


def _which(row: Measurement) -> str:
    return ", ".join(f"{key} {value}" for key, value in row.labels.items() if key in {"op", "bytes", "placement"})


def _collectives(record: BenchRecord, name: str, references: References) -> list[Finding]:
    if record.rows and all(row.labels["ranks"] == 1 for row in record.rows):
        text = "one rank: nothing crosses a link, so these are times of launches and of copies inside the device"
        return [Finding("no-reference", "note", text)]
    found = []
    for op in dict.fromkeys(str(row.labels["op"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["op"] == op]
        nodes, ranks = int(rows[0].labels["nodes"] or 1), int(rows[0].labels["ranks"] or 1)
        fitting = [
            one
            for one in references.bandwidth
            if one.op == op and one.nodes == nodes and is_device(one.device, name) and one.normal and one.ranks == ranks
        ]
        found.append(_bandwidth(op, rows, fitting, nodes, ranks, name))
        found += _latency(op, rows, nodes, name, references)
    return found


def _bandwidth(
    op: str, rows: Sequence[Measurement], fitting: Sequence[Bandwidth], nodes: int, ranks: int, name: str
) -> Finding:
    """Judge the largest common size, because small sizes measure latency."""
    best: dict[int, float] = {}
    for row in rows:
        size = int(row.labels["bytes"] or 0)
        best[size] = max(best.get(size, 0.0), row.figures["busbw"].value)
    common = sorted({one.bytes for one in fitting} & set(best))
    who = f"{nodes} node{'s' * (nodes > 1)} of {fitting[0].device if fitting else name or 'this device'}"
    if not fitting:
        return Finding("no-reference", "note", f"{op}: no published figure for {ranks} ranks on {who}")
    if not common or common[-1] < _LARGE:
        sizes = ", ".join(binary_size(one.bytes) for one in sorted(fitting, key=lambda one: one.bytes)[-3:])
        return Finding(
            "no-reference", "note", f"{op}: {who} have published figures at {sizes}; measure one of these sizes"
        )
    size = common[-1]
    published = sorted(one.busbw for one in fitting if one.bytes == size)
    value, least = best[size], published[0]
    share = value / least
    span = f"{least:g}" if least == published[-1] else f"{least:g} to {published[-1]:g}"
    figures = f"{value:.3g} GB/s busbw at {binary_size(size)}, published {span}"
    if share >= NORMAL:
        return Finding("bandwidth", "ok", f"{op}: normal for {who}: {figures}")
    if share >= LOW:
        return Finding("bandwidth", "warning", f"{op}: somewhat low for {who}: {figures}")
    if share >= TCP:
        why = "not all network cards in use, or no GPUDirect" if nodes > 1 else "possibly a slower path between devices"
        return Finding("bandwidth", "warning", f"{op}: low for {who}: {figures}; {why}")
    why = (
        "looks like TCP: check that the plugin is loaded"
        if nodes > 1
        else "looks like host memory, not the devices' own links"
    )
    return Finding("bandwidth", "error", f"{op}: {why} {figures}")


def _latency(op: str, rows: Sequence[Measurement], nodes: int, name: str, references: References) -> list[Finding]:
    """Detect the transport from tiny messages too, if the network is known to be faster."""
    known = [one for one in references.latency if one.op == op and one.nodes == nodes and is_device(one.device, name)]
    small = [row for row in rows if int(row.labels["bytes"] or 0) <= _SMALL]
    if nodes < 2 or not known or not small:
        return []
    time_us = min(row.figures["time"].value for row in small)
    if time_us <= TCP_LATENCY_US:
        return []
    good = min(one.time_us for one in known)
    return [
        Finding(
            "latency",
            "error",
            f"{op}: small messages take {time_us:.0f} us, published {good:g}: looks like TCP: check that the plugin "
            "is loaded",
        )
    ]


def _matmul(record: BenchRecord, name: str, references: References) -> list[Finding]:
    found = []
    for row in record.rows:
        published = ceiling_of(references, name, str(row.labels["type"]))
        if published is None or published.measured is None:
            continue
        value = row.figures["sustained"].value
        word, severity = _grade(value >= NORMAL * published.measured)
        found.append(
            Finding(
                "matmul",
                severity,
                f"{row.labels['type']} matmul: {word} for {published.name}: {value:.0f} TFLOP/s sustained, "
                f"published {published.measured:g} measured, {published.datasheet or '-'} in the data sheet",
            )
        )
    return found


def _training(record: BenchRecord, name: str, references: References) -> list[Finding]:
    found = []
    for row in record.rows:
        value, unit = training_rate(row)
        fitting = [one for one in references.rate if _same_run(one, row, name, unit)]
        if fitting:
            nearest = min(fitting, key=lambda one: abs(one.value - value))
            share = value / nearest.value
            word, severity = _grade(share >= NORMAL)
            found.append(
                Finding(
                    "training-rate",
                    severity,
                    f"{row.labels['model']} on {counted(row.labels['ranks'], 'rank')}: {word} for "
                    f"{nearest.device}: {value:,.0f} {unit} per device, {share:.2f} x the published {nearest.value:,g} "
                    f"({nearest.method})",
                )
            )
    return found + _left(record)


def _same_run(one: Rate, row: Measurement, name: str, unit: str) -> bool:
    label = row.labels
    if one.unit != unit or one.model != label["model"] or not is_device(one.device, name):
        return False
    if one.ranks != label["ranks"] or one.nodes != label["nodes"]:
        return False
    if any(label.get(key, _UNSAID.get(key)) != value for key, value in one.labels.items()):
        return False
    if one.case == "ddp" and one.method.startswith("no ddp") != (label.get("parallel") == "none"):
        return False
    if one.unit == "images/s" and one.batch is not None and one.batch != label["batch"]:
        return False
    return one.sequence is None or one.sequence == label.get("sequence")


def _left(record: BenchRecord) -> list[Finding]:
    """Judge the share of one device's rate under DDP.

    Less than 80 % means that the path between the devices is slow.
    """
    if record.case != "ddp":
        return []
    found = []
    for model in dict.fromkeys(str(row.labels["model"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["model"] == model]
        alone = next((row for row in rows if row.labels["parallel"] == "none"), None)
        if alone is None or len(rows) < 2:
            continue
        last = rows[-1]
        share = measure.percentile(alone.samples["step_s"], 50) / measure.percentile(last.samples["step_s"], 50)
        ranks = int(last.labels["ranks"] or 1)
        left = f"{model}: {share:.0%} of the rate without DDP is left on {counted(ranks, 'rank')}"
        if ranks == 1 and not NORMAL <= share <= 2 - NORMAL:
            why = "no link is in use, so this is the host, which launches kernels one by one: try a larger --batch"
            found.append(Finding("ddp-share", "warning", f"{left}; {why}"))
        elif share < NORMAL:
            why = "published: 88.6% for ResNet-50 on 2 nodes of GH200: see `windlass bench collectives`"
            found.append(Finding("ddp-share", "warning", f"{left}; {why}"))
    return found


def training_rate(row: Measurement) -> tuple[float, str]:
    """Return tokens/s or images/s of one device."""
    for name, unit in (("tokens_per_s_per_device", "tokens/s"), ("images_per_s_per_device", "images/s")):
        if name in row.figures:
            if unit == "images/s" and "step_s" in row.samples:
                return float(row.labels["batch"] or 0) / measure.percentile(row.samples["step_s"], 50), unit
            return row.figures[name].value, unit
    return 0.0, ""
