"""Why a run was as fast as it was: one rule per cause, each with its evidence and the next thing to try. Pure.

What stands out in a figure is settled in `observe.thresholds`, for `watch` too; what only a whole run shows is here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Literal

import msgspec

from windlass.base.notation.counts import counted
from windlass.diagnose.report.measured import Measured, slow_spans
from windlass.diagnose.watch import thresholds
from windlass.model.finding import Finding, worst_first
from windlass.model.plan import Plan
from windlass.node.sys.text import listed
from windlass.plan.profile import profiled_ranks

_SAME_RANK = 0.6
"""Of the spans with a slow rank, so many must have the same one for it to be that rank's fault."""
_SLOW_SPANS = 0.25
_LEAST_SPANS = 3
_STARTUP_S, _STARTUP_SHARE = 60.0, 0.2
_some = partial(listed, limit=8)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at."""

    plan: Plan
    measured: Measured
    seconds: float | None = None
    started: float | None = None
    state: str = ""


def find(subject: Subject) -> tuple[Finding, ...]:
    """What stands out, the worst first."""
    found = [finding for rule in RULES if (finding := rule(subject)) is not None]
    return worst_first(found) or (_nothing(subject),)


def _nothing(subject: Subject) -> Finding:
    if not subject.measured.spans:
        return Finding(
            kind="not-measured",
            severity="note",
            evidence="nobody sampled this run, so nothing can be said about its speed",
            advice="run it with --watch",
        )
    if not any(rank.steps for rank in subject.measured.ranks):
        return Finding(
            kind="not-measured",
            severity="note",
            evidence="no step of this run was seen, so nothing can be said about its speed",
            advice="call windlass.step() once per step where the optimizer is not torch's",
        )
    if subject.state in {"failed", "killed"}:
        return Finding(
            kind=subject.state,
            severity="note",
            evidence="the run did not end well; in its speed nothing stood out until then",
            advice="windlass runs show RUN",
        )
    return Finding(kind="fine", severity="ok", evidence="nothing stands out: no rule of this report fires")


def input_bound(subject: Subject) -> Finding | None:
    share = share_of(subject.measured, "wait_share")
    severity = thresholds.input_severity(share) if share is not None else None
    if share is None or severity is None:
        return None
    cpus = _cpus_per_rank(subject.plan)
    more = (
        f"more DataLoader workers (a rank has {counted(cpus, 'core')})"
        if cpus and cpus > 1
        else "give ranks more cores"
    )
    return Finding(
        kind="input-bound",
        severity=severity,
        evidence=f"ranks wait for data {share:.0%} of the time "
        f"(median of {counted(len(subject.measured.ranks), 'rank')})",
        advice=f"{more}; data in the memory of the nodes (`windlass stage`), or read once for all of them "
        "(`--cache DIR --cache-placement partition`, and `{view}DIR` as the script's folder)",
    )


def network_bound(subject: Subject) -> Finding | None:
    share = share_of(subject.measured, "comm_share")
    severity = thresholds.network_severity(share) if share is not None else None
    if share is None or severity is None or subject.plan.world_size == 1 or straggler(subject) is not None:
        return None
    return Finding(
        kind="network-bound",
        severity=severity,
        evidence=f"communication that nothing hides takes {share:.0%} of a step (measured by DistributedDataParallel)",
        advice="`windlass bench collectives` tells whether the network is as it should be; a larger batch per rank, "
        "gradient accumulation, larger DDP buckets, `windlass tune`",
    )


def straggler(subject: Subject) -> Finding | None:
    slow = slow_spans(subject.measured.spans)
    spans = sum(1 for span in subject.measured.spans if span.step_ms is not None)
    flagged = sum(slow.values())
    if flagged < _LEAST_SPANS or flagged < _SLOW_SPANS * spans:
        return None
    rank, times = slow.most_common(1)[0]
    longest = f"the longest own time in {times} of {counted(spans, 'span')}, by a third or more"
    if subject.plan.request.profile is not None and rank in profiled_ranks(subject.plan.request):
        return Finding(
            kind="profiled",
            severity="note",
            subject=f"rank {rank}",
            evidence=f"it was profiled and is slower for it, and the others wait for it ({longest})",
            advice="read its profile; judge the speed of the job by a run without --profile",
        )
    host = next((r.host for r in subject.measured.ranks if r.rank == rank), "")
    if times >= _SAME_RANK * flagged:
        return Finding(
            kind="straggler",
            severity="error",
            subject=f"rank {rank} on {host}" if host else f"rank {rank}",
            evidence=f"it is slower than the others by itself, and they wait for it ({longest})",
            advice="`windlass doctor --full` on these nodes; its clocks and cores; "
            "`windlass nodes` keeps a bad node out",
        )
    return Finding(
        kind="noise",
        severity="warning",
        evidence=f"the slow rank changes, so no single node is the cause ({counted(len(slow), 'rank')} in "
        f"{counted(flagged, 'span')})",
        advice="uneven data (bucket samples by length), Python's garbage collector (collect every N steps instead), "
        "a file system that others use",
    )


def cpu_binding(subject: Subject) -> Finding | None:
    cpus = _cpus_per_rank(subject.plan)
    busy = [rank for rank in subject.measured.ranks if rank.cpu is not None and cpus and rank.cpu > 0.95 * cpus]
    if not cpus or not busy or cpus >= 4:
        return None
    there = subject.plan.topology.allowed or subject.plan.topology.cpus
    if there and cpus * len(subject.plan.binding.ranks) >= len(there):
        return None  # the node has no more to give
    return Finding(
        kind="cpu-binding",
        severity="warning",
        evidence=f"ranks keep all of their {counted(cpus, 'core')} busy: "
        f"{_some([str(rank.rank) for rank in busy])} of {counted(len(subject.measured.ranks), 'rank')}; "
        f"bound by: {subject.plan.binding.because}",
        advice="fewer ranks per node, or --cpu-bind with more cores for each: threads and DataLoader workers need some",
    )


def memory_pressure(subject: Subject) -> Finding | None:
    retries = [rank for rank in subject.measured.ranks if rank.alloc_retries]
    full = subject.measured.full_nodes
    if not retries and not full:
        return None
    parts = []
    if retries:
        most = max(rank.alloc_retries or 0 for rank in retries)
        parts.append(f"torch had to flush device memory on {counted(len(retries), 'rank')} (up to {most} times)")
    if full:
        parts.append(f"node memory is at more than {thresholds.MEMORY_SHARE:.0%} of its limit on {_some(list(full))}")
    return Finding(
        kind="memory-pressure",
        severity=thresholds.FULL_NODE if full else thresholds.ALLOC_RETRIES,
        evidence="; ".join(parts),
        advice="a smaller batch, activation checkpointing, fewer DataLoader workers; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments",
    )


def tcp_fallback(subject: Subject) -> Finding | None:
    remark = next((remark for remark in subject.plan.remarks if remark.kind == "tcp-fallback"), None)
    if remark is None or subject.plan.nodes == 1:
        return None
    return msgspec.structs.replace(remark, severity="error")


def idle_devices(subject: Subject) -> Finding | None:
    idle = subject.measured.idle_devices
    if not idle:
        return None
    return Finding(
        kind="idle-devices",
        severity=thresholds.IDLE,
        evidence=f"{counted(len(idle), 'device')} did nothing while ranks took steps (busy less than "
        f"{thresholds.IDLE_BUSY:.0%} of the time): {_some(list(idle))}",
        advice="does the script use LOCAL_RANK for its device? `windlass logs --where` shows what each rank got",
    )


def throttling(subject: Subject) -> Finding | None:
    hot = subject.measured.throttled_devices
    if not hot:
        return None
    return Finding(
        kind="throttled-devices",
        severity=thresholds.THROTTLED,
        evidence=f"{counted(len(hot), 'device')} lowered the clock by itself at the last look: {_some(list(hot))}",
        advice="`windlass doctor` on that node; the operators may want to know",
    )


def slow_start(subject: Subject) -> Finding | None:
    first, begin, seconds = subject.measured.first_step_at, subject.started, subject.seconds
    if first is None or begin is None or not seconds:
        return None
    startup = first - begin
    if startup < _STARTUP_S or startup < _STARTUP_SHARE * seconds:
        return None
    return Finding(
        kind="slow-start",
        severity="warning",
        evidence=f"{startup:.0f} s of {seconds:.0f} s passed before the first step",
        advice="`--cache ENVIRONMENT` reads it once for all nodes; `windlass doctor` says what an import costs",
    )


Rule = Callable[[Subject], "Finding | None"]
RULES: tuple[Rule, ...] = (
    *(tcp_fallback, idle_devices, straggler, input_bound, network_bound),
    *(cpu_binding, memory_pressure, throttling, slow_start),
)


def share_of(measured: Measured, name: Literal["wait_share", "comm_share"]) -> float | None:
    """Median over ranks; over spans where no rank tells it."""
    values = [value for rank in measured.ranks if (value := getattr(rank, name)) is not None]
    values = values or [value for span in measured.spans if (value := getattr(span, name)) is not None]
    return median(values) if values else None


def _cpus_per_rank(plan: Plan) -> int:
    return min((len(rank.cpus) for rank in plan.binding.ranks if rank.cpus), default=0)
