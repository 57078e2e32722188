"""Judge an attempt: its verdict and its record, from the same evidence and the same cause."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from windlass.base.notation.counts import format_cpulist
from windlass.base.notation.shell import quote
from windlass.diagnose.watch.figures import pace
from windlass.diagnose.watch.job import read_job
from windlass.diagnose.watch.rules import check
from windlass.errors import MachineError, WindlassError
from windlass.model.jsontext import to_json
from windlass.model.plan import Plan
from windlass.model.record import RECORD_VERSION, Outcome, RankFailure, RunRecord
from windlass.plan.render.batch_script import launch_argv
from windlass.run.execute import RanksEnd
from windlass.run.failure.decide import Past, RestartOptions
from windlass.run.failure.ends import read_ledger, read_seats
from windlass.run.failure.evidence import failure_of, observe
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.failure.root_cause import RESUME_ME, Cause, Observed, end_code, first_end
from windlass.run.failure.verdict import VERDICT_FILE, Attempt, Verdict, attempt_folders, judge, past_attempts
from windlass.run.folder import RunFolder
from windlass.run.planning import Run

_LATE_S = 5.0
"""Schedulers check the time at intervals. The limit may be the cause of an end this close to it."""
_MAX_SEATS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The result of an attempt. `verdict` is None if it finished."""

    record: RunRecord
    verdict: Verdict | None = None


def is_late(deadline_s: float | None) -> bool:
    """Return whether the allocation's time is over, or so close to it that it may be the cause of an end now."""
    return deadline_s is not None and time.time() >= deadline_s - _LATE_S


def ranks_saw_time_up(folder: RunFolder, since: float) -> bool:
    """Return whether the ranks themselves saved and exited because the allocation ends."""
    return any(line.what == "time-up" and line.at >= since for line in read_ledger(folder.path))


def observe_end(plan: Plan, folder: RunFolder, end: RanksEnd) -> Observed:
    """Collect what the files of an attempt and its launcher show."""
    logs = rank_logs(plan, folder.path)
    seen = observe(logs, end.exit_code, end.launcher, stopped=end.stopped, seen_ends=end.ends)
    return msgspec.structs.replace(seen, oom=end.oom)


def judge_once(run: Run, end: RanksEnd, deadline_s: float | None = None) -> Judgement:
    """Judge a run that is not supervised, from the run's files only. Saves the judgement. Never raises."""
    plan, folder = run.plan, run.folder
    if finished(end):
        return Judgement(record=save_record(run, end))
    seen = observe_end(plan, folder, end)
    if is_late(deadline_s) and _ended_by_scheduler(seen, end):
        seen = msgspec.structs.replace(seen, job="over")
    elif end_code(seen) == RESUME_ME and ranks_saw_time_up(folder, end.started):
        seen = msgspec.structs.replace(seen, time_up=True)
    attempt = Attempt(
        folder=folder.path,
        number=len(attempt_folders(folder.path)),
        session=f"{plan.job_id or 'here'}/{end.started:.0f}",
        hosts=plan.hosts or ",".join(end.hosts),
        started=end.started,
        ended=end.ended,
    )
    return judge_attempt(
        run, attempt, end, seen, past_attempts(folder.path), lambda _: RestartOptions(several_hosts=plan.nodes > 1)
    )


def judge_attempt(
    run: Run,
    attempt: Attempt,
    end: RanksEnd,
    seen: Observed,
    past: tuple[Past, ...],
    options: Callable[[Cause], RestartOptions],
    states: str = "",
) -> Judgement:
    """Find the cause in the evidence, decide, and write the verdict and the resulting record. Never raises.

    An attempt has finished if no rank and no launcher failed and its progress did not stop.
    """
    if not end.stopped and seen.hang is None and not seen.left_early:
        if seen.finished and end.code:
            remark = f"the launcher ended with code {end.code} after all ranks had finished"
            return Judgement(record=save_record(run, dataclasses.replace(end, code=0, remarks=(remark,))))
        if end.code == 0 and seen.launcher is None and first_end(seen) is None:
            return Judgement(record=save_record(run, end))
    verdict = judge(attempt, seen, past, options, states)
    with contextlib.suppress(MachineError):  # a full disk must not change the result
        run.folder.write_bytes(VERDICT_FILE, to_json(verdict))
    return Judgement(record=save_record(run, end, seen, verdict.cause), verdict=verdict)


def finished(end: RanksEnd) -> bool:
    """Return whether the attempt needs no evidence: all ranks exited with code 0 on their own."""
    return not (end.stopped or end.failing or end.code)


def save_record(
    run: Run,
    end: RanksEnd,
    seen: Observed | None = None,
    cause: Cause | None = None,
    *,
    failure: RankFailure | None = None,
) -> RunRecord:
    """Write and return `result.json`. `failure` is the first failure, if the evidence is not in this run's files.

    If the record cannot be written, the run counts as failed: its disk is full or gone, and output of the ranks may be
    missing too. If the run failed anyway, its own exit code is kept.
    """
    record = _record(run.plan, run.folder, end, seen, cause)
    if failure is not None:
        record = msgspec.structs.replace(record, failure=failure, outcome="killed" if end.code > 128 else "failed")
    try:
        run.folder.save_result(record)
    except MachineError as error:
        run.view.note(f"windlass: {error.message}")
        if record.exit_code == 0:
            record = msgspec.structs.replace(record, outcome="failed", exit_code=error.exit_code)
    return record


def _record(plan: Plan, folder: RunFolder, end: RanksEnd, seen: Observed | None, cause: Cause | None) -> RunRecord:
    outcome: Outcome = "failed" if end.code else "ok"
    code, failure = end.exit_code, None
    if end.stopped:
        outcome = "stopped"
    elif seen is not None and cause is not None:
        failure = failure_of(rank_logs(plan, folder.path), seen, cause)
        code = 128 + cause.signal if cause.signal is not None else cause.code or end_code(seen) or 1
        outcome = "killed" if 128 < code < 128 + 65 else "failed"
    return RunRecord(
        version=RECORD_VERSION,
        windlass=plan.windlass,
        name=plan.name,
        site=plan.site,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        hosts=plan.hosts or ",".join(end.hosts),
        job_id=plan.job_id,
        outcome=outcome,
        exit_code=code,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(end.started)),
        seconds=round(end.ended - end.started, 3),
        launch_argv=launch_argv(plan, str(folder.path)),
        failure=failure,
        remarks=end.remarks if outcome == "ok" else (),
        **_figures(folder, end),
    )


def _figures(folder: RunFolder, end: RanksEnd) -> dict[str, Any]:
    """Return steps and findings from the samples of this attempt, in the form that `windlass report` shows."""
    try:
        job = read_job(folder.path)
    except WindlassError:
        return {}
    if job is None or not job.ended or job.at < end.started:
        return {}
    figures = pace(job)
    return {"steps": figures.steps, "step_ms": figures.step_ms, "findings": check(job).findings}


def _ended_by_scheduler(seen: Observed, end: RanksEnd) -> bool:
    """Return whether windlass or the ranks were asked to end, and no rank failed on its own.

    `salloc` sends SIGHUP, and Slurm ends the step itself.
    """
    if end.stopped:
        return end.stopped_by in {signal.SIGTERM, signal.SIGHUP}
    first = first_end(seen)
    return first is None or first.signal == signal.SIGTERM


def good_end(plan: Plan, record: RunRecord, folder: RunFolder) -> list[str]:
    """Return the last lines of a successful run: where the ranks ran, and what to read next."""
    ranks = "the rank" if plan.world_size == 1 else f"all {plan.world_size} ranks"
    lines = [f"windlass: {ranks} finished after {record.seconds:.1f} s"]
    lines += [f"windlass: warning: {remark}" for remark in record.remarks]
    if plan.world_size <= _MAX_SEATS:
        planned = {rank.local_rank: format_cpulist(rank.cpus) for rank in plan.binding.ranks}
        for seat in sorted(read_seats(folder.part("where"))):
            wish = planned.get(seat.rank % plan.ranks_per_node)
            held = "as planned" if wish == seat.cpus else f"planned {wish}" if wish else "not bound"
            device = f", device {seat.device}" if seat.device else ""
            lines.append(f"  rank {seat.rank} on {seat.host}: cpus {seat.cpus} ({held}){device}")
    run = quote(str(folder.path))
    lines.append(f"  output: windlass logs {run}   report: windlass report {run}")
    return [*lines, f"  settings and their reasons: windlass explain {run}"]
