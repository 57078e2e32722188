"""Figures of a job and their text form, shared by every command that shows them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from windlass.base.notation.counts import format_cpulist
from windlass.base.notation.hostlist import fold_hostlist
from windlass.diagnose.watch import thresholds
from windlass.diagnose.watch.job import Job, RankRow

ENOUGH_STEPS = 20
"""With fewer steps, the first steps, which compile and fill caches, dominate every mean."""


class Pace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The speed of a job. None means not measured."""

    steps: int | None = None
    step_ms: float | None = None
    """Median of the ranks' median steps. Uses the newest steps of a running job, and all steps of an ended job."""
    p95_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None
    startup_s: float | None = None
    """Time until the end of the first step."""


def pace(job: Job) -> Pace:
    ranks = stepping(job)
    first = min((rank.first_at for rank in ranks if rank.first_at), default=0.0)
    return Pace(
        steps=max((rank.steps for rank in ranks), default=0) or None,
        step_ms=middle(step_ms(job, rank) for rank in ranks),
        p95_ms=max((rank.p95_ms for rank in ranks if rank.p95_ms is not None), default=None),
        wait_share=middle(wait_share(job, rank) for rank in ranks),
        comm_share=middle(rank.comm_share for rank in ranks),
        startup_s=first - job.started if first and 0 < job.started <= first else None,
    )


def stepping(job: Job) -> list[RankRow]:
    """Ranks that have taken at least one step."""
    return [rank for rank in job.ranks if rank.steps]


def step_ms(job: Job, rank: RankRow) -> float | None:
    return rank.median_ms if job.ended and rank.median_ms is not None else rank.step_ms


def wait_share(job: Job, rank: RankRow) -> float | None:
    return rank.all_wait_share if job.ended else rank.wait_share


def own_ms(rank: RankRow) -> float:
    """The part of a rank's step without waiting for other ranks and for data."""
    return (rank.step_ms or 0.0) * max(0.0, 1 - (rank.comm_share or 0.0) - (rank.wait_share or 0.0))


def slow_ranks(own: Mapping[int, float]) -> tuple[int, ...]:
    """Ranks whose step without waiting is clearly longer than the median. Empty if that holds for more than half."""
    if len(own) < 2:
        return ()
    usual = median(own.values())  # with two ranks, one must take twice as long as the other
    slow = tuple(rank for rank, ms in own.items() if thresholds.is_straggler(ms, usual))
    return slow if 2 * len(slow) <= len(own) else ()


def host_of(job: Job, rank: RankRow) -> str:
    return job.nodes[rank.node].host if rank.node < len(job.nodes) else ""


def oversubscribed(job: Job) -> bool:
    return 0 < job.cores < ranks_per_node(job)


def ranks_per_node(job: Job) -> int:
    return max(Counter(rank.node for rank in job.ranks).values(), default=0)


def is_uneven(job: Job) -> bool:
    """Whether some ranks wait for others, even if the slow ranks change.

    The communication time that these ranks measure is then waiting time."""
    return job.uneven >= max(thresholds.SLOW_SAMPLES, thresholds.SLOW_SHARE * job.compared)


def slow_rows(job: Job) -> list[RankRow]:
    """Ranks that are slow in most of the samples with a slow rank. Empty if the slow ranks change."""
    if not is_uneven(job):
        return []
    least = thresholds.SAME_RANK * job.uneven / job.compared
    return [rank for rank in job.ranks if (rank.slow_share or 0.0) >= least]


def median(values: Iterable[float]) -> float:
    """Like `statistics.median`, but without the import, which makes the start of `run` slower."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[~(len(ordered) // 2)]) / 2


def middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    text = format_cpulist(ranks)
    return f"ranks {text}" if len(text) <= 40 else f"{len(ranks)} ranks ({format_cpulist(ranks[:4])}, …)"


def hosts_text(hosts: Sequence[str]) -> str:
    text = fold_hostlist(tuple(hosts))
    return text if len(text) <= 40 else f"{len(hosts)} nodes ({', '.join(hosts[:2])}, …)"


def ms_text(ms: float | None) -> str:
    """A duration in a readable form."""
    if ms is None:
        return "-"
    if ms >= 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"
