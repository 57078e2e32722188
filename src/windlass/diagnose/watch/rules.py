"""The rules for a slow or broken run, shared by all commands, and the evidence that each rule needs.

A rule without its evidence reports nothing and is listed as not checked. Rules about steps (`step_rules`) use only
ranks with enough steps, and only the time in which they take steps. The rules about memory, cores, devices and files
are here. `findings` has the rules for a running job. `thresholds` has the limits and their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from windlass.base.notation.counts import counted
from windlass.diagnose.watch import step_rules, thresholds
from windlass.diagnose.watch.figures import (
    ENOUGH_STEPS,
    hosts_text,
    is_uneven,
    middle,
    oversubscribed,
    pace,
    ranks_per_node,
    ranks_text,
    stepping,
    wait_share,
)
from windlass.diagnose.watch.job import DeviceRow, Job
from windlass.model.finding import Finding
from windlass.node.sys.text import binary_size, listed

_SHOWN = 8


def more_ranks_than_cores(job: Job) -> Finding | None:
    if not oversubscribed(job):
        return None
    return Finding(
        kind="oversubscribed",
        severity="warning",
        evidence=f"{ranks_per_node(job)} ranks share {counted(job.cores, 'core')} of a node and wait for each other; "
        "the speed of a single rank has no meaning",
        advice="use fewer ranks per node (-r), or nodes with more cores",
    )


def memory_pressure(job: Job) -> Finding | None:
    used = [(node, node.memory_peak_bytes if job.ended else node.memory_bytes) for node in job.nodes]
    full = [n.host for n, b in used if b and (limit := n.memory_limit_bytes) and b > thresholds.MEMORY_SHARE * limit]
    if not full:
        return None
    return Finding(
        kind="memory-pressure",
        severity="error",
        subject=hosts_text(full),
        evidence=f"more than {thresholds.MEMORY_SHARE:.0%} of the memory limit is in use",
        advice="the kernel kills a rank at 100%: use fewer DataLoader workers, a smaller prefetch, or more memory",
        facts={"hosts": full},
    )


def memory_growth(job: Job) -> Finding | None:
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
        evidence=f"host memory grows constantly, by {binary_size(rate * 60)} a minute{soon}",
        advice="find objects that are never released (losses with their graph, growing lists, a leaking worker); the "
        "kernel kills a rank when the limit is reached",
        facts={"hosts": [node.host for _, node in growing]},
    )


def shared_file(job: Job) -> Finding | None:
    if not job.shared_files:
        return None
    path, ranks = job.shared_files[0]
    more = f" (and {counted(len(job.shared_files) - 1, 'other file')})" if len(job.shared_files) > 1 else ""
    return Finding(
        kind="shared-file",
        severity="error",
        subject=ranks_text(ranks),
        evidence=f"save to the same file at the same step: {path}{more}",
        advice="save only on rank 0 (`if rank == 0`), or give every rank a separate file; `windlass.Snapshot` supports "
        "both",
        facts={"ranks": list(ranks)},
    )


def busy_node(job: Job) -> Finding | None:
    """Ranks that are ready but get no core, although they keep only few cores busy."""
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


def cpu_binding(job: Job) -> Finding | None:
    cpus = job.about.cpus_per_rank
    busy = [rank for rank in stepping(job) if rank.cpu is not None and rank.cpu > 0.95 * cpus]
    if not busy or cpus >= 4 or (job.cores and cpus * ranks_per_node(job) >= job.cores):
        return None  # the node has no more cores
    return Finding(
        kind="cpu-binding",
        severity="warning",
        evidence=f"ranks keep all of their {counted(cpus, 'core')} busy: "
        f"{listed([str(rank.rank) for rank in busy], _SHOWN)} of {counted(len(job.ranks), 'rank')}; "
        f"bound by: {job.about.bound_by}",
        advice="use fewer ranks per node, or --cpu-bind with more cores for each: threads and DataLoader workers "
        "need cores",
        facts={"ranks": [rank.rank for rank in busy]},
    )


def device_memory(job: Job) -> Finding | None:
    retried = [rank for rank in job.ranks if rank.alloc_retries]
    if not retried:
        return None
    most = max(rank.alloc_retries or 0 for rank in retried)
    return Finding(
        kind="device-memory",
        severity="warning",
        subject=ranks_text([rank.rank for rank in retried]),
        evidence=f"device memory is full: torch had to free its cache and retry (up to {counted(most, 'time')})",
        advice="use a smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        facts={"ranks": [rank.rank for rank in retried]},
    )


def _devices(
    kind: str, is_bad: Callable[[DeviceRow], bool], evidence: str, advice: str
) -> Callable[[Job], Finding | None]:
    """Make a rule about single devices."""

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

    return judge


idle_devices = _devices(
    "idle-devices",
    lambda device: device.worked is not None and device.worked < thresholds.IDLE_BUSY,
    f"was idle while ranks took steps (busy less than {thresholds.IDLE_BUSY:.0%} of the time)",
    "check that the script uses LOCAL_RANK for its device; `windlass logs --where` shows the device of each rank",
)
throttled_devices = _devices(
    "throttled-devices",
    lambda device: (device.throttled_share or 0.0) >= thresholds.THROTTLED_SHARE,
    "lowered the clock for heat or power",
    "run `windlass doctor` on that node and report it to the site; `run --spares` replaces the node",
)


class Rule(NamedTuple):
    """`lacks` returns why the rule cannot be checked, or an empty string."""

    kind: str
    lacks: Callable[[Job], str]
    judge: Callable[[Job], Finding | None]


class Checked(NamedTuple):
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]
    """`straggler: all ranks share one node`, one entry for each rule without its evidence."""


def check(job: Job) -> Checked:
    """Apply every rule that has its evidence."""
    lacking = {rule.kind: why for rule in RULES if (why := rule.lacks(job))}
    found = [rule.judge(job) for rule in RULES if rule.kind not in lacking]
    return Checked(
        tuple(finding for finding in found if finding is not None),
        tuple(f"{kind}: {why}" for kind, why in lacking.items()),
    )


# Evidence that the rules need


def _no_steps(job: Job) -> str:
    most = max((rank.steps for rank in job.ranks), default=0)
    if not most:
        return "no step was recorded"
    return "" if most >= ENOUGH_STEPS else f"fewer than {ENOUGH_STEPS} steps were recorded"


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
    return "" if job.cores else "the cores of a node are unknown"


def _no_binding(job: Job) -> str:
    return "" if job.about.cpus_per_rank else "ranks are not bound to cores"


def _no_start(job: Job) -> str:
    return "" if pace(job).startup_s is not None else "no first step was recorded"


def _no_memory(job: Job) -> str:
    return _unmeasured("the memory of the nodes", [node.memory_limit_bytes for node in job.nodes])


def _nothing(_: Job) -> str:
    return ""


def _unmeasured(what: str, values: Sequence[object]) -> str:
    return "" if any(value is not None for value in values) else f"{what} was not measured"


RULES = (
    Rule("nan", _no_steps, step_rules.not_a_number),
    Rule("shared-file", _nothing, shared_file),
    Rule("oversubscribed", _no_cores, more_ranks_than_cores),
    Rule("memory-pressure", _no_memory, memory_pressure),
    Rule("memory-growth", _no_steps, memory_growth),
    Rule("input-bound", _no_wait, step_rules.input_bound),
    Rule("input-straggler", _no_wait, step_rules.input_straggler),
    Rule("straggler", _no_comparison, step_rules.straggler),
    Rule("noise", _no_comparison, step_rules.noise),
    Rule("profiled", _no_comparison, step_rules.profiled),
    Rule("gil-held", _no_gil, step_rules.gil_held),
    Rule("tcp-fallback", _nothing, step_rules.tcp_fallback),
    Rule("network-bound", _no_network, step_rules.network_bound),
    Rule("idle-devices", _no_devices, idle_devices),
    Rule("throttled-devices", _no_clocks, throttled_devices),
    Rule("busy-node", _no_delay, busy_node),
    Rule("cpu-binding", _no_binding, cpu_binding),
    Rule("slow-save", _no_phases, step_rules.slow_save),
    Rule("slow-evaluation", _no_phases, step_rules.slow_evaluation),
    Rule("pauses", _no_phases, step_rules.pauses),
    Rule("slow-start", _no_start, step_rules.slow_start),
    Rule("device-memory", _nothing, device_memory),
)
