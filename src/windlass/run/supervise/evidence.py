"""Add the evidence of supervision to the files of an attempt: heartbeats, node diagnostics, the scheduler.

Job disposition: whether the scheduler lets our job continue, takes its nodes back, or was asked to end it. The
scheduler is asked when the ranks or windlass itself received a stop signal, because the signal is the same in all
cases. A cancelled job must not be started again. A preempted job continues on other nodes. A job that the scheduler has
requeued itself must not be submitted a second time.

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
from windlass.run.verdict import finished, is_late, observe_end, ranks_saw_time_up

_DEADLINE_S = 30.0
_ANSWER_S = 10.0
_MAX_ASKED = 4
"""If more nodes than these fall silent at once, only the first ones are checked, as a sample."""

NodeReport = Answers


def diagnose_nodes(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], what: Literal["stacks", "after"], **settings: object
) -> NodeReport:
    """Run `windlass.node.agent.diagnostics` on every node of the plan.

    Never raises. Reports that arrive before the deadline count.
    """
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
    """Return the hosts on which a program can be started within a few seconds. Never raises."""
    question = Question(entry="windlass.node.agent.diagnostics:alive", purpose="alive", deadline_s=_ANSWER_S)
    found: set[str] = set()
    for host in hosts[:_MAX_ASKED]:
        asked = ask(plan, folder, environ, question, (host,))
        found |= asked.answered | asked.refused  # a node that refuses a program is alive
    return frozenset(found)


def lost_hosts(plan: Plan, report: NodeReport) -> tuple[str, ...]:
    """Return the hosts of the plan that did not respond, if others did."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    if len(hosts) < 2 or not report.answered:
        return ()
    return tuple(host for host in hosts if host not in report.answered)


_ASK_S = 10.0


def ask_disposition(plan: Plan, environ: Mapping[str, str], deadline_s: float | None) -> JobDisposition:
    """Ask the scheduler once, with a deadline: a process that is being ended has only seconds left. Never raises."""
    if plan.job_id is None or plan.scheduler == "none":
        return ""
    scheduler = get_scheduler(plan.scheduler)
    try:
        status = ask_status(scheduler, plan.job_id, environ, _ASK_S, from_job=True)
    except WindlassError:
        return ""
    return disposition_of(status, restarts=scheduler.restarts(environ), late=is_late(deadline_s))


def disposition_of(status: JobStatus, *, restarts: int, late: bool) -> JobDisposition:
    """Convert a job status to a disposition.

    `restarts`: how often the scheduler had restarted this job when this start began. PBS reports the same status for a
    job that it ends for its walltime as for any other running job.
    """
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
    """An ended attempt. `stacks`: the reports of the nodes during a hang, if it hung.

    `step` is the number of the attempt with which the launcher's step started. `in_place`: that step still runs.
    """

    number: int
    plan: Plan
    end: RanksEnd
    sidecar: HeartbeatSidecar
    watch: HeartbeatMonitor
    stacks: NodeReport | None
    deadline_s: float | None = None
    step: int = 0
    in_place: bool = False

    @property
    def left_early(self) -> bool:
        """Whether a trainer was asked to save and leave: its ranks then end with code 0 although work remains."""
        return self.plan.trainer is not None and self.plan.trainer.notice != "" and self.watch.time_up

    @property
    def complete(self) -> bool:
        """Whether the work is done: all ranks exited with code 0 on their own."""
        return finished(self.end) and not self.left_early


def gather(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> tuple[Observed, str]:
    """Return the evidence, and a description of the ranks' states if they hung. Never raises.

    Runs node diagnostics, which also remove leftovers of the ranks on the nodes.
    """
    plan = ended.plan
    told = observe_end(plan, folder, ended.end)
    time_up = told.time_up or _time_up(ended, told, folder)
    after = (
        None if ended.end.stopped or ended.in_place or time_up else _diagnose_after(ended, folder, environ)
    )  # at the end of the allocation, time is short
    where, odd = _rank_states(ended, rank_logs(plan, folder.path))
    seen = msgspec.structs.replace(
        told,
        time_up=time_up,
        left_early=ended.left_early,
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
    """Ask for the disposition only if the ranks or windlass received a stop signal. Other ends have other causes."""
    if ended.end.stopped:
        asked = ended.end.stopped_by == signal.SIGTERM
    else:
        asked = end_code(told) == RESUME_ME and not time_up
    return ask_disposition(ended.plan, environ, ended.deadline_s) if asked else ""


def _time_up(ended: Ended, told: Observed, folder: RunFolder) -> bool:
    """Return whether the ranks were asked to exit because the time is up, or detected that themselves."""
    if ended.watch.time_up or ended.end.stopped or end_code(told) != RESUME_ME:
        return ended.watch.time_up
    return ranks_saw_time_up(folder, ended.end.started)


def _diagnose_after(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> NodeReport:
    mark = f"WINDLASS_PLACE={folder.run_id}.{ended.step}."
    return diagnose_nodes(ended.plan, folder, environ, "after", mark=mark, seconds=time.time() - ended.end.started)


def _rank_states(ended: Ended, logs: RankLogs) -> tuple[str, RankState | None]:
    """Return the states of the ranks, from stacks and flight records, and the rank that holds up the others."""
    ranks = rank_states(logs, ended.stacks.messages) if ended.stacks is not None else ()
    said, behind = missing(logs.folder / "flight", logs.world_size)
    return "; ".join(part for part in (states_text(ranks), said) if part), straggler(ranks, behind)


def _kernel(ended: Ended, after: NodeReport | None) -> dict[str, tuple[str, ...]]:
    """Return kernel messages by host."""
    found: dict[str, tuple[str, ...]] = {}
    for line in after.messages if after else ():
        if "kernel" in line:
            host = str(line.get("host", ",".join(ended.end.hosts)))
            found[host] = (*found.get(host, ()), line["kernel"])
    return found
