"""Adds what supervision knows of an attempt to what its files tell: heartbeats, node diagnostics, the scheduler.

Job disposition: whether the scheduler lets the job that we run in go on, takes it back, or was told to end it.

Asked when the ranks or windlass itself were told to stop, because the signal is the same each time: a person who
cancels a job does not want it back, one that was preempted is to go on elsewhere, and one that the scheduler has put
back into its queue itself must not be submitted a second time.

Node diagnostics: one short program per node next to the ranks, which reports what it finds there.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from windlass.agents.step import Answers, Question, ask
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobState, JobStatus
from windlass.base.notation.hostlist import expand_hostlist
from windlass.errors import WindlassError
from windlass.model.plan import Plan
from windlass.run.execute import RanksEnd
from windlass.run.failure.flight import missing
from windlass.run.failure.rank_logs import RankLogs, rank_logs
from windlass.run.failure.rank_states import RankState, rank_states, states_text, straggler
from windlass.run.failure.root_cause import RESUME_ME, JobDisposition, Observed, end_code
from windlass.run.folder import RunFolder
from windlass.run.scheduler_commands import ask_status
from windlass.run.sidecars.heartbeat import HeartbeatSidecar
from windlass.run.supervise.heartbeat_monitor import HeartbeatMonitor
from windlass.run.verdict import is_late, observe_end, ranks_saw_time_up

_DEADLINE_S = 30.0
_ANSWER_S = 10.0
_MAX_ASKED = 4
"""More nodes than these do not fall silent one by one: then the first ones stand for all."""

NodeReport = Answers


def diagnose_nodes(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], what: Literal["stacks", "after"], **settings: object
) -> NodeReport:
    """Run `windlass.node.agent.diagnostics` on every node of the plan. Never raises; what was said before the deadline
    counts."""
    question = Question(
        entry="windlass.node.agent.diagnostics:main",
        purpose="diagnostics",
        deadline_s=_DEADLINE_S,
        settings={"what": what, "run_dir": str(folder.path), **settings},
    )
    return ask(plan, folder, environ, question)


def nodes_that_answer(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], hosts: tuple[str, ...]
) -> frozenset[str]:
    """Those of these hosts on which a program can be started within a few seconds. Never raises."""
    question = Question(entry="windlass.node.agent.diagnostics:alive", purpose="alive", deadline_s=_ANSWER_S)
    found: set[str] = set()
    for host in hosts[:_MAX_ASKED]:
        asked = ask(plan, folder, environ, question, (host,))
        found |= asked.answered | asked.refused  # one that refuses a program is there
    return frozenset(found)


def lost_hosts(plan: Plan, report: NodeReport) -> tuple[str, ...]:
    """Hosts of the plan that did not answer, where others did."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    if len(hosts) < 2 or not report.answered:
        return ()
    return tuple(host for host in hosts if host not in report.answered)


_ASK_S = 10.0


def ask_disposition(plan: Plan, environ: Mapping[str, str], deadline_s: float | None) -> JobDisposition:
    """Ask once, with a deadline: whoever is being ended has only seconds left. Never raises."""
    if plan.job_id is None or plan.scheduler == "none":
        return ""
    scheduler = get_scheduler(plan.scheduler)
    try:
        status = ask_status(scheduler, plan.job_id, environ, _ASK_S, from_job=True)
    except WindlassError:
        return ""
    return disposition_of(status, restarts=scheduler.restarts(environ), late=is_late(deadline_s))


def disposition_of(status: JobStatus, *, restarts: int, late: bool) -> JobDisposition:
    """`restarts`: how often the scheduler had started this job again when this start of it began. PBS says of a job
    that it ends for its walltime what it says of any other that runs."""
    if status.state in {JobState.QUEUED, JobState.HELD} or status.restarts > restarts:
        return "requeued"
    if status.preempted:
        return "preempted"
    ends = {JobState.RUNNING, JobState.ENDING, JobState.CANCELLED}
    if status.state is JobState.TIMEOUT or (status.state in ends and late):
        return "over"
    if status.state in {JobState.ENDING, JobState.CANCELLED}:
        return "cancelled"
    return "" if status.state is JobState.UNKNOWN else "runs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """An attempt that is over. `stacks`: what the nodes said while it hung, if it did."""

    number: int
    plan: Plan
    end: RanksEnd
    sidecar: HeartbeatSidecar
    watch: HeartbeatMonitor
    stacks: NodeReport | None
    deadline_s: float | None = None


def gather(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> tuple[Observed, str]:
    """What was seen, and in words where the ranks were if they hung. Runs node diagnostics, which also sweep what the
    ranks left on the nodes; never raises."""
    plan = ended.plan
    told = observe_end(plan, folder, ended.end)
    time_up = told.time_up or _time_up(ended, told, folder)
    after = (
        None if ended.end.stopped or time_up else _diagnose_after(ended, folder, environ)
    )  # at the end each second counts
    where, odd = _rank_states(ended, rank_logs(plan, folder.path))
    seen = msgspec.structs.replace(
        told,
        time_up=time_up,
        job=_disposition(ended, told, time_up, environ),
        hang=ended.watch.hang,
        straggler=odd,
        lost=tuple(dict.fromkeys((*ended.watch.lost, *(lost_hosts(plan, after) if after else ())))),
        oom=told.oom | frozenset(ended.sidecar.oom),
        kernel=_kernel(ended, after),
        step=ended.sidecar.last_step(),
    )
    return seen, where


def _disposition(ended: Ended, told: Observed, time_up: bool, environ: Mapping[str, str]) -> JobDisposition:
    """Only where somebody told the ranks or windlass to leave: nothing else is the scheduler's doing."""
    if ended.end.stopped:
        asked = ended.end.stopped_by == signal.SIGTERM
    else:
        asked = end_code(told) == RESUME_ME and not time_up
    return ask_disposition(ended.plan, environ, ended.deadline_s) if asked else ""


def _time_up(ended: Ended, told: Observed, folder: RunFolder) -> bool:
    """The ranks were asked to leave because the time is up, or saw it themselves before they were asked."""
    if ended.watch.time_up or ended.end.stopped or end_code(told) != RESUME_ME:
        return ended.watch.time_up
    return ranks_saw_time_up(folder, ended.end.started)


def _diagnose_after(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> NodeReport:
    mark = f"WINDLASS_PLACE={folder.run_id}.{ended.number}."
    return diagnose_nodes(ended.plan, folder, environ, "after", mark=mark, seconds=time.time() - ended.end.started)


def _rank_states(ended: Ended, logs: RankLogs) -> tuple[str, RankState | None]:
    """Which ranks were where, by stacks and flight records, and who holds the others up."""
    ranks = rank_states(logs, ended.stacks.messages) if ended.stacks is not None else ()
    said, behind = missing(logs.folder / "flight", logs.world_size)
    return "; ".join(part for part in (states_text(ranks), said) if part), straggler(ranks, behind)


def _kernel(ended: Ended, after: NodeReport | None) -> dict[str, tuple[str, ...]]:
    """Kernel messages by host."""
    found: dict[str, tuple[str, ...]] = {}
    for line in after.messages if after else ():
        if "kernel" in line:
            host = str(line.get("host", ",".join(ended.end.hosts)))
            found[host] = (*found.get(host, ()), line["kernel"])
    return found
