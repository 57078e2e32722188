"""The rules for a slow or broken run, for every command that judges one: pure functions from samples to findings.

A rule states what evidence it needs. Without it the rule reports nothing and is listed as not checked. Rules about
steps look at ranks that took enough of them, and at the phase of steps alone. What only a running job shows is in
`findings`. Thresholds and their reasons are in `thresholds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from windlass.base.notation.counts import counted
from windlass.diagnose.watch import thresholds
from windlass.diagnose.watch.figures import (
    ENOUGH_STEPS,
    host_of,
    hosts_text,
    is_uneven,
    median,
    middle,
    ms_text,
    oversubscribed,
    own_ms,
    pace,
    ranks_per_node,
    ranks_text,
    slow_rows,
    stepping,
    wait_share,
)
from windlass.diagnose.watch.job import DeviceRow, Job, RankRow
from windlass.model.finding import Finding
from windlass.node.sys.text import binary_size, listed

_SHOWN = 8


class Rule(NamedTuple):
    """`lacks`: why the rule cannot be checked; empty where it can."""

    kind: str
    lacks: Callable[[Job], str]
    judge: Callable[[Job], Finding | None]


class Checked(NamedTuple):
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]
    """`straggler: all ranks share one node`, one for each rule without its evidence."""


def check(job: Job) -> Checked:
    """Apply every rule that has its evidence."""
    lacking = {rule.kind: why for rule in RULES if (why := rule.lacks(job))}
    found = [rule.judge(job) for rule in RULES if rule.kind not in lacking]
    return Checked(
        tuple(finding for finding in found if finding is not None),
        tuple(f"{kind}: {why}" for kind, why in lacking.items()),
    )


# What a rule needs


def _no_steps(job: Job) -> str:
    most = max((rank.steps for rank in job.ranks), default=0)
    if not most:
        return "no step was seen"
    return "" if most >= ENOUGH_STEPS else f"fewer than {ENOUGH_STEPS} steps were seen"


def _no_comparison(job: Job) -> str:
    if len(job.nodes) < 2:
        return "all ranks share one node"
    if oversubscribed(job):
        return "a node has more ranks than cores"
    few = f"fewer than {thresholds.SLOW_SAMPLES} samples compare the ranks"
    return _no_steps(job) or ("" if job.compared >= thresholds.SLOW_SAMPLES else few)


def _no_network(job: Job) -> str:
    if is_uneven(job):
        return "ranks wait for slower ones"
    return _no_comparison(job) or _unmeasured("communication", [rank.comm_share for rank in job.ranks])


def _no_wait(job: Job) -> str:
    return _no_steps(job) or _unmeasured("waiting for data", [wait_share(job, rank) for rank in job.ranks])


def _no_phases(job: Job) -> str:
    return _no_steps(job) or _unmeasured("time between steps", [rank.phases_s for rank in job.ranks])


def _no_gil(job: Job) -> str:
    return _no_steps(job) or _unmeasured("Python's lock", [rank.gil_us for rank in job.ranks])


def _no_delay(job: Job) -> str:
    if oversubscribed(job):
        return "a node has more ranks than cores"
    return _no_steps(job) or _unmeasured("waiting for a core", [rank.run_delay for rank in job.ranks])


def _no_devices(job: Job) -> str:
    return "" if any(device.worked is not None for device in job.devices) else "no device was sampled during steps"


def _no_clocks(job: Job) -> str:
    known = any(device.throttled_share is not None for device in job.devices)
    return "" if known else "no device reported its clock during steps"


def _no_cores(job: Job) -> str:
    return "" if job.cores else "the cores of a node are not known"


def _no_binding(job: Job) -> str:
    return "" if job.about.cpus_per_rank else "ranks are not bound to cores"


def _no_start(job: Job) -> str:
    return "" if pace(job).startup_s is not None else "no first step was seen"


def _no_memory(job: Job) -> str:
    return _unmeasured("the memory of the nodes", [node.memory_limit_bytes for node in job.nodes])


def _nothing(_: Job) -> str:
    return ""


def _unmeasured(what: str, values: Sequence[object]) -> str:
    return "" if any(value is not None for value in values) else f"{what} was not measured"


# The rules


def _oversubscribed(job: Job) -> Finding | None:
    if not oversubscribed(job):
        return None
    return Finding(
        kind="oversubscribed",
        severity="warning",
        evidence=f"{ranks_per_node(job)} ranks share {counted(job.cores, 'core')} of a node, so they take turns; "
        "speeds of single ranks mean nothing",
        advice="fewer ranks per node (-r), or nodes with more cores",
    )


def _memory(job: Job) -> Finding | None:
    used = [(node, node.memory_peak_bytes if job.ended else node.memory_bytes) for node in job.nodes]
    full = [n.host for n, b in used if b and (limit := n.memory_limit_bytes) and b > thresholds.MEMORY_SHARE * limit]
    if not full:
        return None
    return Finding(
        kind="memory-pressure",
        severity="error",
        subject=hosts_text(full),
        evidence=f"more than {thresholds.MEMORY_SHARE:.0%} of the memory limit is in use",
        advice="the kernel kills a rank at 100%: fewer DataLoader workers, a smaller prefetch, or more memory",
        facts={"hosts": full},
    )


def _memory_growth(job: Job) -> Finding | None:
    growing = [(node.growth_bytes_s, node) for node in job.nodes if node.growth_bytes_s]
    if not growing:
        return None
    rate, node = max(growing, key=lambda pair: pair[0])
    left = (node.memory_limit_bytes or 0) - (node.memory_bytes or 0)
    soon = f", and reaches the limit in {left / rate / 60:.0f} min" if left > 0 and not job.ended else ""
    return Finding(
        kind="memory-growth",
        severity="warning",
        subject=hosts_text([node.host for _, node in growing]),
        evidence=f"host memory grows all the time, by {binary_size(rate * 60)} a minute{soon}",
        advice="something keeps what it should drop (losses with their graph, growing lists, a leaking worker); the "
        "kernel kills a rank when the limit is reached",
        facts={"hosts": [node.host for _, node in growing]},
    )


def _nan(job: Job) -> Finding | None:
    broken = [rank for rank in job.ranks if rank.nan_step is not None]
    if not broken:
        return None
    return Finding(
        kind="nan",
        severity="error",
        subject=ranks_text([rank.rank for rank in broken]),
        evidence=f"parameters are not numbers (NaN), seen at step {min(rank.nan_step or 0 for rank in broken):,}",
        advice="stop it: every further step is wasted. Go back to a snapshot from before; a lower learning rate, "
        "gradient clipping, bfloat16 instead of float16, `torch.autograd.set_detect_anomaly(True)` to find the place",
        facts={"ranks": [rank.rank for rank in broken]},
    )


def _shared_file(job: Job) -> Finding | None:
    if not job.shared_files:
        return None
    path, ranks = job.shared_files[0]
    more = f" (and {counted(len(job.shared_files) - 1, 'other file')})" if len(job.shared_files) > 1 else ""
    return Finding(
        kind="shared-file",
        severity="error",
        subject=ranks_text(ranks),
        evidence=f"save to the same file at the same step: {path}{more}",
        advice="save on rank 0 alone (`if rank == 0`), or give every rank a file of its own; `windlass.Snapshot` does "
        "either",
        facts={"ranks": list(ranks)},
    )


def _input_bound(job: Job) -> Finding | None:
    known = _waits(job)
    usual = median(known.values())
    severity = _input_severity(usual)
    if severity is None:
        return None
    return Finding(
        kind="input-bound",
        severity=severity,
        evidence=f"ranks wait for data {usual:.0%} of the time (median of {counted(len(known), 'rank')})",
        advice="more DataLoader workers, as far as the cores of a rank go; data in the memory of the nodes "
        "(`windlass stage`), or read once for all of them (`--cache DIR --cache-set placement=partition`, and "
        "`{view}DIR` as the script's folder)",
        facts={"ranks": [rank for rank, share in known.items() if _input_severity(share)]},
    )


def _input_straggler(job: Job) -> Finding | None:
    known = _waits(job)
    alone = [rank for rank, share in known.items() if _input_severity(share) == "error"]
    if len(known) < 2 or not alone or _input_severity(median(known.values())) is not None:
        return None
    return Finding(
        kind="input-straggler",
        severity="error",
        subject=ranks_text(alone),
        evidence=f"waits {max(known[rank] for rank in alone):.0%} of a step for data, and all others with it",
        advice=f"its node's file system or CPUs: windlass exec --rank {alone[0]} -- top -b -n 1",
        facts={"ranks": alone},
    )


def _waits(job: Job) -> dict[int, float]:
    pairs = ((rank.rank, wait_share(job, rank)) for rank in stepping(job))
    return {rank: share for rank, share in pairs if share is not None}


def _input_severity(share: float) -> thresholds.Serious | None:
    return thresholds.severity(share, thresholds.WAIT_WARN, thresholds.WAIT_BAD)


def _gil(job: Job) -> Finding | None:
    held = _gil_ranks(job)
    if not held:
        return None
    most = max(rank.gil_us or 0.0 for rank in job.ranks)
    return Finding(
        kind="gil-held",
        severity="warning",
        subject=ranks_text(sorted(held)),
        evidence="another thread of the process holds Python's lock: the training thread gets it back only after "
        f"{most / 1000:.0f} ms",
        advice="move the work of that thread into a process (multiprocessing, DataLoader workers) or into code that "
        f"releases the lock; `windlass exec --rank {min(held)} -- sh -c 'py-spy dump --pid $WINDLASS_RANK_PID'` shows "
        "which thread it is",
        facts={"ranks": sorted(held)},
    )


def _gil_ranks(job: Job) -> set[int]:
    return {rank.rank for rank in job.ranks if (rank.gil_us or 0.0) >= thresholds.GIL_US}


def _straggler(job: Job) -> Finding | None:
    known_cause = {*job.about.profiled, *_gil_ranks(job)}
    slow = [rank for rank in slow_rows(job) if rank.rank not in known_cause]
    if not slow:
        return None
    of_host = Counter(host_of(job, rank) for rank in stepping(job))
    hosts = Counter(host_of(job, rank) for rank in slow)
    node = all(host and count == of_host[host] and count > 1 for host, count in hosts.items())
    subject = hosts_text(list(hosts)) if node else ranks_text([rank.rank for rank in slow])
    if not node and len(hosts) == 1 and (host := next(iter(hosts))):
        subject += f" on {host}"
    return Finding(
        kind="slow-node" if node else "straggler",
        severity="error",
        subject=subject,
        evidence=f"slower than the others by itself, and they wait for it ({_slow_text(job, slow)})",
        advice="`windlass doctor --full` on these nodes; clocks, temperature and neighbours; `run --spares` does "
        "without",
        facts={"ranks": [rank.rank for rank in slow], "hosts": sorted(hosts)},
    )


def _profiled(job: Job) -> Finding | None:
    slow = [rank for rank in slow_rows(job) if rank.rank in job.about.profiled]
    if not slow:
        return None
    return Finding(
        kind="profiled",
        severity="note",
        subject=ranks_text([rank.rank for rank in slow]),
        evidence=f"it was profiled and is slower for it, and the others wait for it ({_slow_text(job, slow)})",
        advice="read its profile; judge the speed of the job by a run without --profile",
    )


def _slow_text(job: Job, slow: Sequence[RankRow]) -> str:
    most, usual = max(own_ms(rank) for rank in slow), median(own_ms(rank) for rank in stepping(job))
    often = max(rank.slow_share or 0.0 for rank in slow)
    times = f"in {often * job.compared:.0f} of {counted(job.compared, 'sample')}"
    return f"{ms_text(most)} of its own in a step, the median rank {ms_text(usual)}; {times}"


def _noise(job: Job) -> Finding | None:
    if slow_rows(job) or not is_uneven(job):
        return None
    others = sum(1 for rank in job.ranks if rank.slow_share)
    return Finding(
        kind="noise",
        severity="warning",
        evidence=f"the slow rank changes, so no single node is the cause ({counted(others, 'rank')} in "
        f"{counted(job.uneven, 'sample')})",
        advice="uneven data (bucket samples by length), Python's garbage collector (collect every N steps instead), "
        "a file system that others use",
    )


def _busy_node(job: Job) -> Finding | None:
    """Ranks that are ready and get no core, although they keep few of them busy themselves."""
    found = []
    for number, node in enumerate(job.nodes):
        delay = middle(rank.run_delay for rank in stepping(job) if rank.node == number)
        if delay is not None and delay >= thresholds.DELAY_WARN:
            found.append((delay, node.host))
    if not found:
        return None
    return Finding(
        kind="busy-node",
        severity="warning",
        subject=hosts_text([host for _, host in found]),
        evidence=f"ranks wait {max(found)[0]:.0%} of the time for a core, which other processes use",
        advice="`windlass exec --node HOST -- top -b -n 1` shows them: another job on the node, or ranks that are "
        "bound to the same cores; ask for whole nodes",
        facts={"hosts": [host for _, host in found]},
    )


def _cpu_binding(job: Job) -> Finding | None:
    cpus = job.about.cpus_per_rank
    busy = [rank for rank in stepping(job) if rank.cpu is not None and rank.cpu > 0.95 * cpus]
    if not busy or cpus >= 4 or (job.cores and cpus * ranks_per_node(job) >= job.cores):
        return None  # the node has no more to give
    return Finding(
        kind="cpu-binding",
        severity="warning",
        evidence=f"ranks keep all of their {counted(cpus, 'core')} busy: "
        f"{listed([str(rank.rank) for rank in busy], _SHOWN)} of {counted(len(job.ranks), 'rank')}; "
        f"bound by: {job.about.bound_by}",
        advice="fewer ranks per node, or --cpu-bind with more cores for each: threads and DataLoader workers need some",
        facts={"ranks": [rank.rank for rank in busy]},
    )


def _network_bound(job: Job) -> Finding | None:
    """By the rank that waits least: the others may wait for it and not for the network."""
    share = min(rank.comm_share for rank in job.ranks if rank.comm_share is not None)
    severity = thresholds.severity(share, thresholds.COMM_WARN, thresholds.COMM_BAD)
    if severity is None:
        return None
    return Finding(
        kind="network-bound",
        severity=severity,
        evidence=f"communication that nothing hides takes {share:.0%} of a step on every rank (measured by "
        "DistributedDataParallel)",
        advice="`windlass bench collectives` tells whether the network is as it should be, `run --comm-log` whether "
        "the fabric's plugin is in use; a larger batch per rank, larger DDP buckets, `windlass tune`",
    )


def _tcp_fallback(job: Job) -> Finding | None:
    remark = next((one for one in job.about.remarks if one.kind == "tcp-fallback"), None)
    return None if remark is None else msgspec.structs.replace(remark, severity="error")


def _between_steps(kind: str, phase: int, warn: float, what: str, advice: str) -> Callable[[Job], Finding | None]:
    """A rule about one phase of `RankRow.phases_s`: the median rank's share of the time after its start."""

    def judge(job: Job) -> Finding | None:
        phases = [rank.phases_s for rank in stepping(job) if rank.phases_s is not None]
        share = median(seconds[phase] / max(1e-9, sum(seconds[1:])) for seconds in phases)
        if share < warn:
            return None
        steps = f"the median step takes {ms_text(pace(job).step_ms)}"
        return Finding(
            kind=kind, severity="warning", evidence=f"{share:.0%} of the time passes in {what}; {steps}", advice=advice
        )

    return judge


_slow_save = _between_steps(
    "slow-save",
    4,
    thresholds.SAVE_WARN,
    "saves",
    "save less often or in the background (`windlass.Snapshot`), to a faster file system",
)
_slow_evaluation = _between_steps(
    "slow-evaluation",
    3,
    thresholds.PAUSE_WARN,
    "evaluation",
    "evaluate less often or on fewer batches; all ranks can share the batches of an evaluation (DistributedSampler)",
)
_pauses = _between_steps(
    "pauses",
    5,
    thresholds.PAUSE_WARN,
    "pauses between steps",
    "saves, evaluation or logging hold the ranks up: do it less often, or in the background (`windlass.Snapshot`)",
)


def _slow_start(job: Job) -> Finding | None:
    startup, whole = pace(job).startup_s or 0.0, job.at - job.started
    least = thresholds.STARTUP_S if job.ended else thresholds.STARTUP_LIVE_S
    if startup < least or startup < thresholds.STARTUP_SHARE * whole:
        return None
    return Finding(
        kind="slow-start",
        severity="warning",
        evidence=f"{startup:.0f} s of {whole:.0f} s passed before the first step",
        advice="`--cache ENVIRONMENT` reads it once for all nodes; `windlass doctor` says what an import costs",
    )


def _device_memory(job: Job) -> Finding | None:
    retried = [rank for rank in job.ranks if rank.alloc_retries]
    if not retried:
        return None
    most = max(rank.alloc_retries or 0 for rank in retried)
    return Finding(
        kind="device-memory",
        severity="warning",
        subject=ranks_text([rank.rank for rank in retried]),
        evidence=f"device memory is full: torch had to free its cache and ask again (up to {counted(most, 'time')})",
        advice="a smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        facts={"ranks": [rank.rank for rank in retried]},
    )


def _devices(kind: str, is_bad: Callable[[DeviceRow], bool], evidence: str, advice: str) -> Rule:
    """A rule about single devices."""

    def judge(job: Job) -> Finding | None:
        bad = [device for device in job.devices if is_bad(device)]
        if not bad:
            return None
        names = [f"{job.nodes[device.node].host} {device.index}" for device in bad]
        mark = " (unverified reader)" if any(device.unverified for device in bad) else ""
        return Finding(
            kind=kind,
            severity="error",
            subject=listed(names, _SHOWN),
            evidence=f"{len(bad)} of {counted(len(job.devices), 'device')} {evidence}{mark}",
            advice=advice,
            facts={"hosts": sorted({job.nodes[device.node].host for device in bad})},
        )

    return Rule(kind, _no_devices if kind == "idle-devices" else _no_clocks, judge)


RULES = (
    Rule("nan", _no_steps, _nan),
    Rule("shared-file", _nothing, _shared_file),
    Rule("oversubscribed", _no_cores, _oversubscribed),
    Rule("memory-pressure", _no_memory, _memory),
    Rule("memory-growth", _no_steps, _memory_growth),
    Rule("input-bound", _no_wait, _input_bound),
    Rule("input-straggler", _no_wait, _input_straggler),
    Rule("straggler", _no_comparison, _straggler),
    Rule("noise", _no_comparison, _noise),
    Rule("profiled", _no_comparison, _profiled),
    Rule("gil-held", _no_gil, _gil),
    Rule("tcp-fallback", _nothing, _tcp_fallback),
    Rule("network-bound", _no_network, _network_bound),
    _devices(
        "idle-devices",
        lambda device: device.worked is not None and device.worked < thresholds.IDLE_BUSY,
        f"did nothing while ranks took steps (busy less than {thresholds.IDLE_BUSY:.0%} of the time)",
        "does the script use LOCAL_RANK for its device? `windlass logs --where` shows what each rank got",
    ),
    _devices(
        "throttled-devices",
        lambda device: (device.throttled_share or 0.0) >= thresholds.THROTTLED_SHARE,
        "lowered the clock for heat or power",
        "`windlass doctor` on that node; tell the site; `run --spares` can do without the node",
    ),
    Rule("busy-node", _no_delay, _busy_node),
    Rule("cpu-binding", _no_binding, _cpu_binding),
    Rule("slow-save", _no_phases, _slow_save),
    Rule("slow-evaluation", _no_phases, _slow_evaluation),
    Rule("pauses", _no_phases, _pauses),
    Rule("slow-start", _no_start, _slow_start),
    Rule("device-memory", _nothing, _device_memory),
)
