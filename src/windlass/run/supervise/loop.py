"""The loop of attempts: start, wait, find the cause, decide, start again. Only this module acts on decisions.

Also defines a supervised run: what one start of it consists of, and when its allocation ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from windlass.backends.schedulers.walltime import parse_walltime
from windlass.base.notation.shell import quote
from windlass.errors import WindlassError
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.node.sys.reading import read_bytes
from windlass.plan.inputs import Secrets
from windlass.plan.render.rank_script import REQUEUE_FOLDER, REQUEUE_SAVED, requeue_script
from windlass.plan.render.variables import SECRETS_FILE, JobFacts
from windlass.run.bad_nodes import forgive, remember_node
from windlass.run.execute import RanksEnd, execute, prepare
from windlass.run.failure.decide import Decision, Past, RestartOptions
from windlass.run.failure.root_cause import RESUME_ME, Cause, Observed
from windlass.run.failure.verdict import Attempt, attempt_folders, ending_lines, past_attempts, past_of
from windlass.run.folder import IN_PLACE, RunFolder, restart
from windlass.run.jit_caches import finish_caches
from windlass.run.planning import Run
from windlass.run.rendezvous import plan_hosts
from windlass.run.sidecars.compose import compose_sidecars
from windlass.run.sidecars.heartbeat import heartbeats_folder
from windlass.run.signals import listening
from windlass.run.supervise.attempts import own, release
from windlass.run.supervise.checkpoints import after_attempt, with_checkpoint
from windlass.run.supervise.evidence import Ended, NodeReport, diagnose_nodes, gather, nodes_that_answer
from windlass.run.supervise.heartbeat_monitor import HeartbeatMonitor, margin_s
from windlass.run.supervise.in_place import InPlace
from windlass.run.supervise.replan import BATCH_FILE, next_plan, resubmit, spare_hosts
from windlass.run.verdict import Judgement, good_end, judge_attempt, save_record

_NEEDED_S = 120.0
_NEEDED_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervised(Run):
    """A supervised run, and everything that supervision needs."""

    deadline_s: float | None = None
    """When the allocation ends, if known."""

    starts: list[tuple[Plan, JobFacts]] = field(default_factory=list)
    """Every start so far. The node-local caches of the last one still exist."""


def supervise_attempts(live: Supervised) -> RunRecord:
    """Run until the work is done, or the restarts or the allocation are used up. Returns the last attempt's record.

    Its exit code is that of "resume me" if the work can continue later.
    """
    last: list[RunRecord] = []
    try:
        return _keep_alive(live, last)
    except WindlassError as error:
        if not last:
            raise
        live.view.note(f"windlass: the run could not be restarted: {error.message}")
        return _with_code(live, last[-1], last[-1].exit_code)
    except KeyboardInterrupt:  # between two starts, no other code handles signals
        if last:
            live.folder.save_result(msgspec.structs.replace(last[-1], outcome="stopped"))
        raise


def _keep_alive(live: Supervised, last: list[RunRecord]) -> RunRecord:
    secrets = _read_secrets(live.folder)
    session = f"{live.plan.job_id or 'here'}/{time.time():.0f}"
    past = list(past_attempts(live.folder.path))
    number = len(attempt_folders(live.folder.path))
    bad: frozenset[str] = frozenset()
    plan = live.plan
    began = time.time()
    while True:
        if secrets is not None:
            live.folder.write_bytes(SECRETS_FILE, secrets)
        plan = with_checkpoint(plan, live.folder)
        live.folder.save_plan(plan, Secrets())
        this = dataclasses.replace(live, plan=plan)
        again = functools.partial(_again_in_place, this, past, bad, session, began)
        with listening():
            ended = _attempt(this, number, began, again)
            for line in after_attempt(plan, live.folder, ended.end.started):
                live.view.note(line)
            if ended.complete or ended.end.stopped:  # needs no evidence, which must not prevent this record
                last.append(save_record(this, ended.end))
        if ended.complete:
            return last[-1]
        try:
            judged = _judge(this, ended, tuple(past), bad, session, began)
        except KeyboardInterrupt:
            last.append(save_record(this, dataclasses.replace(ended.end, stopped_by=signal.SIGINT)))
            raise
        last.append(judged.record)
        verdict, record = judged.verdict, judged.record
        if verdict is None:
            return record
        past.append(past_of(verdict))
        if not (live.view.component and record.outcome == "stopped"):
            for line in ending_lines(verdict, record, live.folder.path, shown=live.view.shows, supervised=True):
                live.view.note(line)
        bad = _remember(live, verdict.decision, bad)
        if verdict.decision.action == "resubmit":
            return _resubmitted(live, plan, record, bad)
        if verdict.decision.action != "restart":
            resumable = verdict.cause.kind in {"resume", "walltime", "preempted"}
            return _with_code(live, record, RESUME_ME if resumable else record.exit_code)
        restart(live.folder)
        number = len(attempt_folders(live.folder.path))
        plan = next_plan(plan, live.context, bad)


def _again_in_place(
    live: Supervised, past: list[Past], bad: frozenset[str], session: str, began: float, ended: Ended
) -> int | None:
    """Judge an attempt whose rank scripts wait. Returns the number of the next one, or None if it needs a new step."""
    for line in after_attempt(live.plan, live.folder, ended.end.started):
        live.view.note(line)
    judged = _judge(live, ended, tuple(past), bad, session, began)
    verdict = judged.verdict
    if verdict is None or verdict.decision.action != "restart" or verdict.decision.bad is not None:
        return None
    if ended.number > ended.step and verdict.to_step is None:
        return None  # a start in place did not help
    if with_checkpoint(live.plan, live.folder).command != live.plan.command:
        return None  # the rank scripts have the command of their start
    past.append(past_of(verdict))
    for line in ending_lines(verdict, judged.record, live.folder.path, shown=live.view.shows, supervised=True):
        live.view.note(line)
    restart(live.folder, IN_PLACE)
    return len(attempt_folders(live.folder.path))


def _attempt(live: Supervised, number: int, began: float, again: Callable[[Ended], int | None]) -> Ended:
    plan = live.plan
    stacks: list[NodeReport] = []
    request = plan.request
    watch = HeartbeatMonitor(
        live.folder,
        live.view,
        hang_after_s=request.hang_after_s,
        deadline_s=live.deadline_s,
        margin_s=margin_s(live.deadline_s, began, plan.grace_s),
        take_stacks=lambda: stacks.append(diagnose_nodes(plan, live.folder, live.environ, "stacks")),
        answers=lambda hosts: nodes_that_answer(plan, live.folder, live.environ, hosts),
    )
    hosts = plan_hosts(plan)
    facts = msgspec.structs.replace(
        live.rendezvous(hosts, f"{live.folder.run_id}.{number}"),
        attempt=number,
        deadline_s=live.deadline_s,
        beats=heartbeats_folder(plan, os.getuid(), live.folder.run_id),
    )
    facts = prepare(live, facts, hosts)
    live.starts.append((plan, facts))
    if plan.trainer is not None and plan.trainer.holds_requeue:
        live.folder.part(REQUEUE_FOLDER).mkdir(mode=0o700, exist_ok=True)
        live.folder.part(REQUEUE_SAVED).unlink(missing_ok=True)
        live.folder.write(f"{REQUEUE_FOLDER}/scontrol", requeue_script(), mode=0o700)
    sidecars = compose_sidecars(live, facts, hosts)
    assert sidecars.heartbeat is not None  # a supervised request always has it
    watch.signs = heartbeat = sidecars.heartbeat

    def ended(end: RanksEnd, *, runs: bool) -> Ended:
        end = dataclasses.replace(end, started=place.started)
        return Ended(
            number=place.number,
            plan=plan,
            end=end,
            sidecar=heartbeat,
            watch=watch,
            stacks=stacks[-1] if stacks else None,
            deadline_s=live.deadline_s,
            step=number,
            in_place=runs,
        )

    def again_in_place(code: int) -> int | None:
        end = RanksEnd(hosts=hosts, code=code, failing=True, started=place.started, ended=time.time())
        next_number = again(ended(end, runs=True))
        if next_number is not None:
            stacks.clear()
        return next_number

    place = InPlace(watch, heartbeat, number, again_in_place)
    return ended(execute(live, facts, hosts, sidecars.whole, place), runs=False)


def _judge(
    live: Supervised, ended: Ended, past: tuple[Past, ...], bad: frozenset[str], session: str, began: float
) -> Judgement:
    """Collect the evidence and judge the attempt."""
    attempt = Attempt(
        folder=live.folder.path,
        number=ended.number,
        session=session,
        hosts=ended.plan.hosts or ",".join(ended.end.hosts),
        started=ended.end.started,
        ended=time.time(),
        noticed=ended.watch.noticed,
    )
    seen, states = gather(ended, live.folder, live.environ)
    return judge_attempt(
        live, attempt, ended.end, seen, past, lambda cause: _options(live, ended.plan, seen, cause, bad, began), states
    )


def _options(
    live: Supervised, plan: Plan, seen: Observed, cause: Cause, bad: frozenset[str], began: float
) -> RestartOptions:
    left = None if live.deadline_s is None else live.deadline_s - time.time()
    whole = None if live.deadline_s is None else live.deadline_s - began
    gone = bad | ({cause.host} if cause.host else set())
    return RestartOptions(
        restarts=plan.request.restarts_allowed,
        until_done=plan.request.until_done,
        spare_hosts=spare_hosts(plan, live.context, gone),
        several_hosts=plan.launcher != "local",
        seconds_left=left,
        needed_s=min(_NEEDED_S, _NEEDED_SHARE * whole) if whole is not None else _NEEDED_S,
        requeued=seen.job == "requeued",
    )


def _remember(live: Supervised, decision: Decision, bad: frozenset[str]) -> frozenset[str]:
    """Return the hosts that this run avoids from now on. Saves which of them later jobs must avoid."""
    state_dir, site, run = live.settings.state_dir, live.plan.site, str(live.folder.path)
    try:
        if decision.lifted:
            forgive(state_dir, frozenset(decision.lifted), site, run)
        if decision.bad is not None:
            reason = decision.proof or decision.why
            remember_node(state_dir, site=site, host=decision.bad, reason=reason, run=run, proven=bool(decision.proof))
    except WindlassError as error:
        live.view.note(f"windlass: {error.message}")
    return (bad - set(decision.lifted)) | ({decision.bad} if decision.bad is not None else set())


def _resubmitted(live: Supervised, plan: Plan, record: RunRecord, bad: frozenset[str]) -> RunRecord:
    """Submit the next job.

    It may begin before this one has ended. Therefore the record of this job is written first, and no process drives the
    run when the next job is submitted.
    """
    left = _with_code(live, record, RESUME_ME)
    release(live.folder)
    try:
        job_id = resubmit(plan, live.folder, live.environ, bad, live.deadline_s)
        live.view.note(f"windlass: submitted again as job {job_id}")
    except WindlassError as error:
        own(live.folder, plan.job_id)
        live.view.note(f"windlass: the job could not be submitted again: {error.message}")
        live.view.note(f"windlass: continue with: windlass runs resume {quote(str(live.folder.path))}")
    return left


def _with_code(live: Supervised, record: RunRecord, code: int) -> RunRecord:
    changed = msgspec.structs.replace(record, exit_code=code)
    with contextlib.suppress(WindlassError):
        live.folder.save_result(changed)
    return changed


def _read_secrets(folder: RunFolder) -> bytes | None:
    """Read the secrets again. Each start removes the file when it ends, and the next one needs it."""
    try:
        return read_bytes(folder.part(SECRETS_FILE))
    except OSError:
        return None


def run_supervised(run: Run) -> RunRecord:
    """Start a run repeatedly, as its request allows. Returns the record of the last start."""
    folder, view, environ = run.folder, run.view, run.environ
    if run.secrets:
        folder.save_plan(run.plan, run.secrets)
    run.announce()
    values = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    live = Supervised(**values, deadline_s=_deadline_s(run))
    record = None
    try:
        record = supervise_attempts(live)
    finally:
        folder.forget_secrets()
        in_haste = record is None or record.outcome == "stopped" or record.exit_code == RESUME_ME
        for ended, facts in live.starts[-1:]:
            finish_caches(ended, folder, facts, environ, view, in_haste=in_haste)
    if record.outcome == "ok" and not run.quiet:
        for line in good_end(live.starts[-1][0], record, folder):
            view.note(line)
    return record


def _deadline_s(run: Run) -> float | None:
    """Return when this allocation ends, according to the scheduler.

    In a job that windlass submitted, the fallback is the plan's time limit. It is late by the seconds that the job
    needed to get here, which the margin covers.
    """
    allocation = run.context.allocation
    if allocation is None or allocation.end_time_s is not None:
        return allocation.end_time_s if allocation else None
    if run.plan.request.time is None or not run.folder.part(BATCH_FILE).exists():
        return None
    return time.time() + parse_walltime(run.plan.request.time)
