"""Rules about the memory, cores, devices and files of a job: pure functions from samples to a finding.

`rules` defines the evidence that each rule needs.
"""

from __future__ import annotations

from collections.abc import Callable

from windlass.base.notation.counts import counted
from windlass.diagnose.watch import thresholds
from windlass.diagnose.watch.figures import hosts_text, middle, oversubscribed, ranks_per_node, ranks_text, stepping
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
        evidence=f"{ranks_per_node(job)} ranks share {counted(job.cores, 'core')} of a node, so they take turns; "
        "speeds of single ranks mean nothing",
        advice="fewer ranks per node (-r), or nodes with more cores",
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
        advice="the kernel kills a rank at 100%: fewer DataLoader workers, a smaller prefetch, or more memory",
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
        evidence=f"host memory grows all the time, by {binary_size(rate * 60)} a minute{soon}",
        advice="something keeps what it should drop (losses with their graph, growing lists, a leaking worker); the "
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
        advice="save on rank 0 alone (`if rank == 0`), or give every rank a file of its own; `windlass.Snapshot` does "
        "either",
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
        advice="fewer ranks per node, or --cpu-bind with more cores for each: threads and DataLoader workers need some",
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
        evidence=f"device memory is full: torch had to free its cache and ask again (up to {counted(most, 'time')})",
        advice="a smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
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
    f"did nothing while ranks took steps (busy less than {thresholds.IDLE_BUSY:.0%} of the time)",
    "does the script use LOCAL_RANK for its device? `windlass logs --where` shows what each rank got",
)
throttled_devices = _devices(
    "throttled-devices",
    lambda device: (device.throttled_share or 0.0) >= thresholds.THROTTLED_SHARE,
    "lowered the clock for heat or power",
    "`windlass doctor` on that node; tell the site; `run --spares` can do without the node",
)
