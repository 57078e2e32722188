"""Find the problems of a running job and what to do about them, the most serious first. Pure.

The rules for a slow run are in `rules`, which the report uses too. This module has the rules that need a running job.
"""

from __future__ import annotations

from collections.abc import Callable

from windlass.diagnose.watch.figures import hosts_text, ms_text, pace, ranks_text
from windlass.diagnose.watch.job import Job, RankRow
from windlass.diagnose.watch.rules import check
from windlass.model.finding import SERIOUS, Finding, worst_first

STALL_STEPS, STALL_S = 5.0, 120.0
QUIET_STEPS, QUIET_S = 10.0, 5.0
SAVE_S = 3600.0
FLUSH_S = 1.0
"""Ranks write their steps to a file at this interval (`node/sampler/recorder.py`)."""
LOST_INTERVALS, LOST_S = 4.0, 30.0
CPU_FULL = 0.97


def find(job: Job) -> tuple[Finding, ...]:
    """All findings, the most serious first. If there is no problem, one finding reports that."""
    here = (finding for rule in _RULES for finding in rule(job))
    found = worst_first((*here, *check(job).findings))
    told = any(finding.severity in SERIOUS or finding.kind == "no-step" for finding in found)
    return found if told else (_all_well(job), *found)


def _all_well(job: Job) -> Finding:
    step = pace(job).step_ms
    steps = f": steps of {ms_text(step)}" if step is not None else ""
    if job.ended:
        return Finding(severity="ok", kind="ended", evidence=f"the run has ended{steps}")
    if steps:
        return Finding(severity="ok", kind="steady", evidence=f"no performance problem found{steps}")
    if not any(node.at for node in job.nodes):
        return Finding(severity="note", kind="starting", evidence="no sample has arrived yet: the agents are starting")
    return Finding(severity="note", kind="starting", evidence="no step was recorded yet: the ranks are starting")


def _stalled(job: Job) -> list[Finding]:
    """Ranks that have taken no step for a long time: an error after minutes, a note after ten steps.

    Evaluation and saves take time. A rank that fetches batches counts as evaluating, and a rank that saves has an hour.
    Ranks are named only if other ranks still take steps. The job does not contain the steps since the last flush, so
    after a total stop the order of the last steps means nothing."""
    stepping = [rank for rank in job.ranks if rank.activity == "steps" and rank.step_ms is not None and rank.last_at]
    if job.ended or not stepping:
        return []
    unseen_s = job.interval_s + FLUSH_S

    def late(steps: float, seconds: float, since: Callable[[RankRow], float]) -> list[RankRow]:
        return [r for r in stepping if job.at - since(r) > max(seconds, steps * (r.step_ms or 0) / 1000)]

    stopped = late(STALL_STEPS, STALL_S, _alive_at)
    slow = late(QUIET_STEPS, QUIET_S + unseen_s, lambda rank: rank.last_at or 0.0)
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


def _alive_at(rank: RankRow) -> float:
    """Time of the last step or fetched batch. For a rank that saves, up to an hour after the start of the save."""
    doing = (rank.doing_at or 0.0) + (SAVE_S if rank.doing == "save" else 0.0)
    return max(rank.last_at or 0.0, doing if rank.doing else 0.0)


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
            advice="check the node with `windlass exec --node HOST -- uptime`",
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
            evidence="steps are not recorded: no Python on the node, or Python runs with -I, -E or -S",
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
            advice="use fewer threads or loader workers per rank if steps are slow",
            facts={"hosts": full},
        )
    ]


def _notes(job: Job) -> list[Finding]:
    return [Finding(severity="note", kind="note", subject=note.nodes, evidence=note.text) for note in job.notes]


_RULES: tuple[Callable[[Job], list[Finding]], ...] = (_lost, _stalled, _unseen, _cpus, _notes)
