"""Why a run was as fast as it was: one rule per cause, each with its evidence and the next thing to try. Pure.

The rules for a slow run are in `watch.rules`, for `watch` too. What only a whole run shows is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from windlass.base.notation.counts import counted
from windlass.diagnose.report.measured import Measured
from windlass.diagnose.watch.rules import Figures, RankFigures, check, ranks_text
from windlass.model.finding import Finding, worst_first
from windlass.model.plan import Plan
from windlass.node.sys.text import binary_size, listed
from windlass.plan.profile import profiled_ranks

_SAME_RANK = 0.6
"""Of the spans with a slow rank, so many must have the same one for it to be that rank's fault."""
_SLOW_SPANS = 0.25
_LEAST_SPANS = 3
_STARTUP_S, _STARTUP_SHARE = 60.0, 0.2


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
    return worst_first((*found, *check(figures_of(subject)).findings)) or (_nothing(subject),)


def not_checked(subject: Subject) -> tuple[str, ...]:
    """The common rules that lack their evidence, each with the reason."""
    return tuple(f"not checked: {why}" for why in check(figures_of(subject)).not_checked)


def figures_of(subject: Subject) -> Figures:
    """The run as the common rules look at it."""
    measured, topology = subject.measured, subject.plan.topology
    slow = slow_ranks(measured)
    return Figures(
        ranks=tuple(
            RankFigures(
                rank=one.rank,
                host=one.host,
                steps=one.steps,
                step_ms=one.median_ms,
                mean_ms=one.step_ms,
                p95_ms=one.p95_ms,
                wait_share=one.wait_share,
                comm_share=one.comm_share,
                alloc_retries=one.alloc_retries or 0,
            )
            for one in measured.ranks
            if one.steps or one.step_ms is not None
        ),
        hosts=tuple(dict.fromkeys(one.host for one in measured.ranks)),
        ranks_per_node=subject.plan.ranks_per_node,
        cores_per_node=len(topology.allowed or topology.cpus),
        slow=_split_profiled(subject, slow.ranks)[1],
        slow_because=slow.words,
        uneven=bool(slow.words),
        devices=measured.devices,
        idle=measured.idle_devices,
        throttled=measured.throttled_devices,
        full=measured.full_nodes,
    )


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


class Slow(NamedTuple):
    """Ranks that are slow in most of the spans with a slow one; none of them where they change. `words` is empty where
    there are too few such spans."""

    ranks: tuple[int, ...] = ()
    words: str = ""


def slow_ranks(measured: Measured) -> Slow:
    spans = [span for span in measured.spans if span.step_ms is not None]
    flagged = [span for span in spans if span.slow_ranks]
    if len(flagged) < _LEAST_SPANS or len(flagged) < _SLOW_SPANS * len(spans):
        return Slow()
    times = Counter(rank for span in flagged for rank in span.slow_ranks)
    same = tuple(sorted(rank for rank, count in times.items() if count >= _SAME_RANK * len(flagged)))
    most = max(times.values())
    return Slow(same, f"the longest own time in {most} of {counted(len(spans), 'span')}, by a third or more")


def _split_profiled(subject: Subject, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those of the ranks that were profiled, and the others."""
    request = subject.plan.request
    under = set(profiled_ranks(request)) if request.profile is not None else set()
    return tuple(rank for rank in ranks if rank in under), tuple(rank for rank in ranks if rank not in under)


def profiled(subject: Subject) -> Finding | None:
    slow = slow_ranks(subject.measured)
    ranks, _ = _split_profiled(subject, slow.ranks)
    if not ranks:
        return None
    return Finding(
        kind="profiled",
        severity="note",
        subject=ranks_text(ranks),
        evidence=f"it was profiled and is slower for it, and the others wait for it ({slow.words})",
        advice="read its profile; judge the speed of the job by a run without --profile",
    )


def noise(subject: Subject) -> Finding | None:
    slow, figures = slow_ranks(subject.measured), figures_of(subject)
    if slow.ranks or not slow.words or len(figures.hosts) < 2 or figures.oversubscribed:
        return None
    spans = [span for span in subject.measured.spans if span.slow_ranks]
    others = {rank for span in spans for rank in span.slow_ranks}
    return Finding(
        kind="noise",
        severity="warning",
        evidence=f"the slow rank changes, so no single node is the cause ({counted(len(others), 'rank')} in "
        f"{counted(len(spans), 'span')})",
        advice="uneven data (bucket samples by length), Python's garbage collector (collect every N steps instead), "
        "a file system that others use",
    )


def memory_growth(subject: Subject) -> Finding | None:
    host, growth = subject.measured.growing or ("", 0.0)
    if not host:
        return None
    return Finding(
        kind="memory-growth",
        severity="warning",
        subject=host,
        evidence=f"host memory grew all the time, by {binary_size(growth * 60)} a minute",
        advice="something keeps what it should drop (losses with their graph, growing lists, a leaking worker); the "
        "kernel kills a rank when the limit is reached",
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
        f"{listed([str(rank.rank) for rank in busy], 8)} of {counted(len(subject.measured.ranks), 'rank')}; "
        f"bound by: {subject.plan.binding.because}",
        advice="fewer ranks per node, or --cpu-bind with more cores for each: threads and DataLoader workers need some",
    )


def tcp_fallback(subject: Subject) -> Finding | None:
    remark = next((remark for remark in subject.plan.remarks if remark.kind == "tcp-fallback"), None)
    if remark is None or subject.plan.nodes == 1:
        return None
    return msgspec.structs.replace(remark, severity="error")


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
RULES: tuple[Rule, ...] = (tcp_fallback, profiled, noise, memory_growth, cpu_binding, slow_start)


def share_of(measured: Measured, name: Literal["wait_share", "comm_share"]) -> float | None:
    """Median over ranks; over spans where no rank tells it."""
    values = [value for rank in measured.ranks if (value := getattr(rank, name)) is not None]
    values = values or [value for span in measured.spans if (value := getattr(span, name)) is not None]
    return median(values) if values else None


def _cpus_per_rank(plan: Plan) -> int:
    return min((len(rank.cpus) for rank in plan.binding.ranks if rank.cpus), default=0)
