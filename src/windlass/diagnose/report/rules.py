"""Why a run was as fast as it was: one rule per cause, each with its evidence and the next thing to try. Pure.

What stands out in a figure is settled in `observe.thresholds`, for `watch` too; what only a whole run shows is here.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Literal

import msgspec

from windlass.base.notation.counts import counted
from windlass.diagnose.report.measured import Measured, slow_spans
from windlass.diagnose.watch import thresholds
from windlass.model.plan import Plan
from windlass.plan.profile import profiled_ranks

Level = Literal["good", "note", "warn", "bad"]
LEVELS: tuple[Level, ...] = ("bad", "warn", "note", "good")
"""In the order in which people read them."""

_SAME_RANK = 0.6
"""Of the spans with a slow rank, so many must have the same one for it to be that rank's fault."""
_SLOW_SPANS = 0.25
_LEAST_SPANS = 3
_STARTUP_S, _STARTUP_SHARE = 60.0, 0.2
_SHOWN = 8


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One verdict: what, on which evidence, and what to try."""

    name: str
    level: Level
    text: str
    evidence: str = ""
    next: str = ""


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
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level))) or (_nothing(subject),)


def _nothing(subject: Subject) -> Finding:
    if not subject.measured.spans:
        return Finding(
            name="not measured",
            level="note",
            text="nobody sampled this run, so nothing can be said about its speed",
            next="run it with --watch",
        )
    if not any(rank.steps for rank in subject.measured.ranks):
        return Finding(
            name="not measured",
            level="note",
            text="no step of this run was seen, so nothing can be said about its speed",
            next="call windlass.step() once per step where the optimizer is not torch's",
        )
    if subject.state in {"failed", "killed"}:
        return Finding(
            name=subject.state,
            level="note",
            text="the run did not end well; in its speed nothing stood out until then",
            next="windlass runs show RUN",
        )
    return Finding(name="fine", level="good", text="nothing stands out: no rule of this report fires")


def input_bound(subject: Subject) -> Finding | None:
    share = share_of(subject.measured, "wait_share")
    level = thresholds.input_level(share) if share is not None else None
    if share is None or level is None:
        return None
    cpus = _cpus_per_rank(subject.plan)
    more = (
        f"more DataLoader workers (a rank has {counted(cpus, 'core')})"
        if cpus and cpus > 1
        else "give ranks more cores"
    )
    return Finding(
        name="input-bound",
        level=level,
        text=f"ranks wait for data {share:.0%} of the time",
        evidence=f"time in the DataLoader's iterator, median over {counted(len(subject.measured.ranks), 'rank')}",
        next=f"{more}; data in the memory of the nodes (`windlass stage`), or read once for all of them "
        "(`--cache DIR --cache-placement partition`, and `{view}DIR` as the script's folder)",
    )


def network_bound(subject: Subject) -> Finding | None:
    share = share_of(subject.measured, "comm_share")
    level = thresholds.network_level(share) if share is not None else None
    if share is None or level is None or subject.plan.world_size == 1 or straggler(subject) is not None:
        return None
    return Finding(
        name="network-bound",
        level=level,
        text=f"communication that nothing hides takes {share:.0%} of a step",
        evidence="what DistributedDataParallel measured of itself",
        next="`windlass bench collectives` tells whether the network is as it should be; a larger batch per rank, "
        "gradient accumulation, larger DDP buckets, `windlass tune`",
    )


def straggler(subject: Subject) -> Finding | None:
    slow = slow_spans(subject.measured.spans)
    spans = sum(1 for span in subject.measured.spans if span.step_ms is not None)
    flagged = sum(slow.values())
    if flagged < _LEAST_SPANS or flagged < _SLOW_SPANS * spans:
        return None
    rank, times = slow.most_common(1)[0]
    if subject.plan.request.profile is not None and rank in profiled_ranks(subject.plan.request):
        return Finding(
            name="profiled",
            level="note",
            text=f"rank {rank} was profiled and is slower for it, and the others wait for it",
            evidence=f"the longest own time in {times} of {counted(spans, 'span')}, by a third or more",
            next="read its profile; judge the speed of the job by a run without --profile",
        )
    host = next((r.host for r in subject.measured.ranks if r.rank == rank), "")
    if times >= _SAME_RANK * flagged:
        where = f" on {host}" if host else ""
        return Finding(
            name="straggler",
            level="bad",
            text=f"rank {rank}{where} is slower than the others by itself, and they wait for it",
            evidence=f"the longest own time in {times} of {counted(spans, 'span')}, by a third or more",
            next="`windlass doctor --full` on these nodes; its clocks and cores; `windlass nodes` keeps a bad node out",
        )
    return Finding(
        name="noise",
        level="warn",
        text=f"now one rank is slow, now another ({counted(len(slow), 'rank')} in {counted(flagged, 'span')})",
        evidence="the slow rank changes, so no single node is the cause",
        next="uneven data (bucket samples by length), Python's garbage collector (collect every N steps instead), "
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
        name="cpu binding",
        level="warn",
        text=f"ranks keep all of their {counted(cpus, 'core')} busy: "
        f"{_some([str(rank.rank) for rank in busy])} of {counted(len(subject.measured.ranks), 'rank')}",
        evidence=f"bound by: {subject.plan.binding.because}",
        next="fewer ranks per node, or --cpu-bind with more cores for each: threads and DataLoader workers need some",
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
        name="memory pressure",
        level=thresholds.FULL_NODE if full else thresholds.ALLOC_RETRIES,
        text="; ".join(parts),
        next="a smaller batch, activation checkpointing, fewer DataLoader workers; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments",
    )


def tcp_fallback(subject: Subject) -> Finding | None:
    remark = next((r for r in subject.plan.remarks if r.level == "warning" and "TCP" in r.text), None)
    if remark is None or subject.plan.nodes == 1:
        return None
    return Finding(
        name="tcp fallback", level="bad", text=remark.text, evidence="the plan of this run", next=remark.hint
    )


def idle_devices(subject: Subject) -> Finding | None:
    idle = subject.measured.idle_devices
    if not idle:
        return None
    return Finding(
        name="idle devices",
        level=thresholds.IDLE,
        text=f"{counted(len(idle), 'device')} did nothing while ranks took steps: {_some(list(idle))}",
        evidence=f"busy less than {thresholds.IDLE_BUSY:.0%} of the time",
        next="does the script use LOCAL_RANK for its device? `windlass logs --where` shows what each rank got",
    )


def throttling(subject: Subject) -> Finding | None:
    hot = subject.measured.throttled_devices
    if not hot:
        return None
    return Finding(
        name="throttled devices",
        level=thresholds.THROTTLED,
        text=f"{counted(len(hot), 'device')} lowered the clock by itself at the last look: {_some(list(hot))}",
        next="`windlass doctor` on that node; the operators may want to know",
    )


def slow_start(subject: Subject) -> Finding | None:
    first, begin, seconds = subject.measured.first_step_at, subject.started, subject.seconds
    if first is None or begin is None or not seconds:
        return None
    startup = first - begin
    if startup < _STARTUP_S or startup < _STARTUP_SHARE * seconds:
        return None
    return Finding(
        name="slow start",
        level="warn",
        text=f"{startup:.0f} s of {seconds:.0f} s passed before the first step",
        next="`--cache ENVIRONMENT` reads it once for all nodes; `windlass doctor` says what an import costs",
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


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
