"""What is worst in a job, and what to do about it: rules over its rows, the most serious finding first. Pure.

The rules for a slow run are in `rules`, for the report too. What only a running job shows is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median

from windlass.diagnose.watch import thresholds
from windlass.diagnose.watch.job import DeviceRow, Job, RankRow
from windlass.diagnose.watch.rules import Figures, RankFigures, check, hosts_text, ms_text, ranks_text, slow_ranks
from windlass.model.finding import SERIOUS, Finding, worst_first

STALL_STEPS, STALL_S = 5.0, 120.0
QUIET_STEPS, QUIET_S = 10.0, 5.0
FLUSH_S = 1.0
"""Ranks write their steps down this often (`node/sampler/recorder.py`)."""
LOST_INTERVALS, LOST_S = 4.0, 30.0
CPU_FULL = 0.97


def find(job: Job) -> tuple[Finding, ...]:
    """All findings, the most serious first; one that says so where nothing stands out."""
    here = (finding for rule in _RULES for finding in rule(job))
    found = worst_first((*here, *check(figures_of(job)).findings))
    told = any(finding.severity in SERIOUS or finding.kind == "no-step" for finding in found)
    return found if told else (_all_well(job), *found)


def figures_of(job: Job) -> Figures:
    """The job as the common rules look at it: the last samples while it runs, all of its steps when it has ended."""
    active = _active(job)
    own = {rank.rank: (rank.step_ms or 0.0) * (1 - (rank.comm_share or 0.0)) for rank in active}
    slow = slow_ranks(own)
    because = ""
    if slow:
        most, middle = max(own[rank] for rank in slow), median(own.values())
        because = f"{ms_text(most)} of its own in a step, the median rank {ms_text(middle)}"
    per_node = Counter(rank.node for rank in job.ranks)
    busy = [device for device in job.devices if device.busy is not None]
    live = not job.ended
    return Figures(
        ranks=tuple(_rank_figures(job, rank) for rank in active),
        hosts=tuple(node.host for node in job.nodes),
        ranks_per_node=max(per_node.values(), default=0),
        cores_per_node=job.cores,
        slow=slow,
        slow_because=because,
        uneven=bool(slow),
        devices=len(job.devices),
        idle=tuple(_device(job, one) for one in busy if active and live and thresholds.is_idle(one.busy or 0.0)),
        throttled=tuple(_device(job, device) for device in job.devices if device.throttled),
        full=tuple(n.host for n in job.nodes if live and thresholds.is_full(n.memory_bytes, n.memory_limit_bytes)),
    )


def _rank_figures(job: Job, rank: RankRow) -> RankFigures:
    return RankFigures(
        rank=rank.rank,
        host=job.nodes[rank.node].host if rank.node < len(job.nodes) else "",
        steps=rank.steps,
        step_ms=rank.step_ms,
        mean_ms=rank.all_ms,
        p95_ms=rank.p95_ms,
        wait_share=rank.all_wait_share if job.ended else rank.wait_share,
        comm_share=rank.comm_share,
        alloc_retries=rank.alloc_retries or 0,
    )


def _device(job: Job, device: DeviceRow) -> str:
    return f"{job.nodes[device.node].host} {device.index}" if device.node < len(job.nodes) else str(device.index)


def _all_well(job: Job) -> Finding:
    steps = [rank.step_ms for rank in job.ranks if rank.step_ms is not None]
    if job.ended:
        return Finding(severity="ok", kind="ended", evidence="the run has ended" + (_paces(job) if steps else ""))
    if steps:
        return Finding(severity="ok", kind="steady", evidence=f"nothing stands out{_paces(job)}")
    if not any(node.at for node in job.nodes):
        return Finding(severity="note", kind="starting", evidence="no sample has come yet: the agents are starting")
    return Finding(severity="note", kind="starting", evidence="no step has been seen yet: the ranks are starting")


def _paces(job: Job) -> str:
    steps = [rank.step_ms for rank in job.ranks if rank.step_ms is not None]
    return f": steps of {ms_text(median(steps))}"


def _active(job: Job) -> list[RankRow]:
    return [rank for rank in job.ranks if rank.activity in {"steps", "ended"} and rank.step_ms is not None]


def _stalled(job: Job) -> list[Finding]:
    """Ranks without a step for long: an error after minutes, a note after ten steps, for evaluation and saves take
    their time. A rank is named only where others still take steps: what ranks did since their last flush is not
    seen, so that after a total stop the order of the last steps says nothing."""
    stepping = [rank for rank in job.ranks if rank.activity == "steps" and rank.step_ms is not None and rank.last_at]
    if job.ended or not stepping:
        return []
    unseen_s = job.interval_s + FLUSH_S

    def late(steps: float, seconds: float) -> list[RankRow]:
        return [r for r in stepping if job.at - (r.last_at or 0) > max(seconds, steps * (r.step_ms or 0) / 1000)]

    stopped, slow = late(STALL_STEPS, STALL_S), late(QUIET_STEPS, QUIET_S + unseen_s)
    ranks = stopped or slow
    if not ranks or (not stopped and len(slow) < len(stepping)):
        return []
    age = job.at - max(rank.last_at or 0 for rank in ranks)
    some = len(ranks) < len(stepping)
    first = ranks[0].rank
    return [
        Finding(
            severity="error" if stopped else "note",
            kind="stalled" if stopped else "no-step",
            subject=ranks_text([rank.rank for rank in ranks]) if some else "",
            evidence=f"no step for {age:.0f} s" + (f", since step {min(r.steps for r in ranks):,}" if some else ""),
            advice=f"where: windlass exec --rank {first} -- sh -c 'py-spy dump --pid $WINDLASS_RANK_PID'; "
            "`run --hang-after` asks all ranks",
            facts={"ranks": [rank.rank for rank in ranks]},
        )
    ]


def _lost(job: Job) -> list[Finding]:
    if job.ended:
        return []
    limit = max(LOST_S, LOST_INTERVALS * job.interval_s)
    hosts = tuple(node.host for node in job.nodes if node.at and job.at - node.at > limit)
    if not hosts:
        return []
    return [
        Finding(
            severity="error",
            kind="lost",
            subject=hosts_text(hosts),
            evidence=f"sent no sample for more than {limit:.0f} s",
            advice="is the node gone, or its agent? `windlass exec --node HOST -- uptime` asks it",
            facts={"hosts": hosts},
        )
    ]


def _unseen(job: Job) -> list[Finding]:
    unseen = [rank for rank in job.ranks if rank.activity == "command"]
    if not unseen:
        return []
    return [
        Finding(
            severity="note",
            kind="unseen",
            subject=ranks_text([rank.rank for rank in unseen]),
            evidence="steps are not seen: no Python there, or one with -I, -E or -S",
            advice="call windlass.step() in the training loop",
            facts={"ranks": [rank.rank for rank in unseen]},
        )
    ]


def _cpus(job: Job) -> list[Finding]:
    full = [node.host for node in job.nodes if (node.cpu or 0.0) > CPU_FULL]
    if not full or job.ended:
        return []
    return [
        Finding(
            severity="note",
            kind="cpu",
            subject=hosts_text(full),
            evidence="all CPUs are busy",
            advice="fewer threads or loader workers per rank, if steps are slower than they should be",
            facts={"hosts": full},
        )
    ]


def _notes(job: Job) -> list[Finding]:
    return [Finding(severity="note", kind="note", subject=note.nodes, evidence=note.text) for note in job.notes]


_RULES: tuple[Callable[[Job], list[Finding]], ...] = (_lost, _stalled, _unseen, _cpus, _notes)
