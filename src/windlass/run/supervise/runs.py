"""Runs on disk: what state each is in, why it ended, whether it can go on. Asks the scheduler where it has to.

End a run from outside: the windlass that drives it asks the ranks to save and leave, or its job is cancelled.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobState, JobStatus
from windlass.base.notation.counts import duration_text
from windlass.base.procs.command import run_command
from windlass.base.settings import read_settings
from windlass.errors import MachineError, UsageError, WindlassError
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.node.sys.reading import read_text
from windlass.plan.render.batch_script import EXIT_FILE
from windlass.run.failure.ends import newest_step, read_ledger
from windlass.run.failure.evidence import observe
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.failure.root_cause import RESUME_ME, find_cause
from windlass.run.failure.verdict import attempt_folders, log_cause, read_verdict
from windlass.run.folder import COMMAND_FILE, PLAN_FILE, FolderUse, RunFolder, is_run, open_folder, read_plan
from windlass.run.scheduler_commands import ask_status, scheduler_environ
from windlass.run.sidecars.detached import AGENTS_FILE
from windlass.run.supervise.attempts import Owner, read_owner, records
from windlass.run.trust import is_own_folder, require_trust

State = Literal["running", "waiting", "done", "resumable", "stopped", "failed", "killed", "unknown"]
"""`waiting`: in the scheduler's queue. `resumable`: it saved and left. `killed`: windlass itself was, in the middle."""
_ASK_S = 15.0
_NO_ANSWER = "the scheduler gives no answer about job"
_FAULTS = {
    "node": "lost a node",
    "memory": "ran out of memory",
    "prologue": "was not started: its prologue or launch failed on a node",
}
_WAITING = {JobState.QUEUED, JobState.HELD}
_RUNNING = {JobState.RUNNING, JobState.ENDING}


class RunState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run as a listing shows it."""

    path: str
    name: str
    state: State
    why: str = ""
    attempts: int = 1
    step: int | None = None
    """Of the newest snapshot."""
    seconds: float | None = None
    """Of all starts together."""
    steps: int | None = None
    """That the last start took, where it was sampled."""
    step_ms: float | None = None
    """Median step of the last start."""
    job_id: str | None = None
    changed: float = 0.0
    shape: str = ""
    may_live: bool = False
    """Nobody can say from here that it does not run: the scheduler gives no answer about its job."""


def find_runs(runs_dir: Path) -> list[RunFolder]:
    """Run folders below a folder, the oldest first."""
    found = [path.parent for path in runs_dir.expanduser().glob(f"*/{PLAN_FILE}") if is_run(path.parent)]
    return [RunFolder(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def find_folders(runs_dir: Path) -> list[RunFolder]:
    """Folders of runs and of commands that are none (`stage`, `tune`), the oldest first."""
    others = (path.parent for path in runs_dir.expanduser().glob(f"*/{COMMAND_FILE}"))
    found = {*(folder.path for folder in find_runs(runs_dir)), *others}
    return [RunFolder(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def find_run(text: str | None, runs_dir: Path) -> RunFolder:
    """A run by its folder, or by its name below the folder of runs, as `runs list` shows it; None: the last one made.
    A `UsageError` where there is none."""
    if text is None:
        found = find_runs(runs_dir)
        if not found:
            raise UsageError(f"no runs in {runs_dir}", hint="give a run folder, or set WINDLASS_RUNS")
        return found[-1]
    path = Path(text)
    if len(path.parts) == 1 and not path.exists():
        path = runs_dir.expanduser() / text
    if not is_run(path):
        raise UsageError(
            f"{text} is not a run folder: there is no {PLAN_FILE} in it",
            hint="`windlass runs list` shows what there is",
        )
    return open_folder(path)


def state_of(folder: RunFolder, environ: Mapping[str, str]) -> RunState:
    """How a run stands, or a command that is none. A folder with a damaged file is `unknown`, with the reason."""
    try:
        use = folder.use()
        if use is not None and read_owner(folder) is None:
            return _use_state(folder, use)
        plan = read_plan(folder.path)
        record = folder.result()
        ended = [one.seconds for _, one in records(folder)]
    except WindlassError as error:
        return RunState(path=str(folder.path), name=folder.path.name, state="unknown", why=error.message)
    job_id = _job_id(folder)
    state, why = _state(folder, plan, record, job_id, environ)
    if state == "done" and ended:
        why = f"after {duration_text(sum(ended))}"
    may_live = state == "unknown" and why.startswith(_NO_ANSWER)
    return RunState(
        path=str(folder.path),
        name=plan.name,
        state=state,
        why=why,
        attempts=len(attempt_folders(folder.path)) + 1,
        step=newest_step(read_ledger(folder.path)),
        seconds=sum(ended) if ended else None,
        steps=record.steps if record else None,
        step_ms=record.step_ms if record else None,
        job_id=job_id,
        changed=_changed(folder),
        shape=f"{plan.nodes} x {plan.ranks_per_node}",
        may_live=may_live,
    )


def _use_state(folder: RunFolder, use: FolderUse) -> RunState:
    """Of a command that is no run. Agents that it left at work end with the job, or by `windlass cache stop`."""
    state: State
    if folder.part(AGENTS_FILE).exists():
        state, why = "running", f"agents of windlass {use.command}, until windlass cache stop {folder.path}"
    elif use.outcome:
        state, why = use.outcome, f"windlass {use.command}" + (f": {use.why}" if use.why else "")
    elif (alive := use.process.alive()) is None:
        state, why = "unknown", f"windlass {use.command} by process {use.process.pid} on {use.process.host}"
    elif alive:
        state, why = "running", f"windlass {use.command} by process {use.process.pid}"
    else:
        state, why = "killed", f"windlass {use.command} died without a record"
    paths = [folder.part(name) for name in (COMMAND_FILE, AGENTS_FILE)]
    changed = max(path.stat().st_mtime for path in paths if path.exists())
    return RunState(path=str(folder.path), name=folder.path.name, state=state, why=why, changed=changed)


def _state(
    folder: RunFolder, plan: Plan, record: RunRecord | None, job_id: str | None, environ: Mapping[str, str]
) -> tuple[State, str]:
    owner = read_owner(folder)
    if owner is not None and owner.pid != os.getpid() and owner.alive():  # who asks does not drive it at this moment
        return "running", f"by process {owner.pid} on {owner.host}"
    said = _ask_scheduler(plan, job_id, environ) if job_id and _may_be_queued(folder, owner, job_id) else None
    if said and said[0] in {"waiting", "running"}:
        return said
    if said and said[0] == "unknown" and (record is None or record.outcome != "ok"):
        return said
    if record is not None:
        return _ended(folder, plan, record)
    if owner is None:
        told = _with_log(folder, said) if said else None
        return _ended_alone(folder) or told or ("unknown", "it has not been started, or by an older windlass")
    said = said or _ask_scheduler(plan, owner.job_id, environ)
    alive = {"waiting", "running", "unknown"}
    if said is None or (owner.alive() is False and said[0] in alive):
        return "killed", "windlass died without a record"
    return _with_log(folder, said)


def _with_log(folder: RunFolder, said: tuple[State, str]) -> tuple[State, str]:
    """What the scheduler reports of a failed job, with the first cause in the log of its batch script."""
    line = log_cause(folder.part("job.log"))[1] if said[0] == "failed" else ""
    return (said[0], f"{said[1]}; its log says: {line}") if line else said


def _ended_alone(folder: RunFolder) -> tuple[State, str] | None:
    """How a standalone job ended, which leaves its code and no record."""
    try:
        code = int(read_text(folder.part(EXIT_FILE)))
    except (OSError, ValueError):
        return None
    return ("done", "a standalone job") if code == 0 else ("failed", f"a standalone job, with code {code}")


def _may_be_queued(folder: RunFolder, owner: Owner | None, job_id: str) -> bool:
    """A job that windlass has left is over, unless the scheduler took it back and starts it again by itself."""
    if owner is None or owner.job_id != job_id:
        return True
    verdict = read_verdict(folder.path)
    return verdict is not None and verdict.cause.kind == "preempted"


def _ended(folder: RunFolder, plan: Plan, record: RunRecord) -> tuple[State, str]:
    if record.outcome == "ok":
        return "done", ""
    verdict = read_verdict(folder.path)
    stopped = record.outcome == "stopped"
    if verdict is not None:
        cause = verdict.cause
    else:  # of a windlass that kept none for runs without supervision
        cause = find_cause(observe(rank_logs(plan, folder.path), record.exit_code, record.failure, stopped=stopped))
    state: State = "resumable" if record.exit_code == RESUME_ME else "stopped" if stopped else "failed"
    return state, cause.line()


def _ask_scheduler(plan: Plan, job_id: str | None, environ: Mapping[str, str]) -> tuple[State, str] | None:
    """What the scheduler says of a job; None where it has no reason to tell. Where it gives no answer the job may
    live: that is `unknown`, never dead."""
    if job_id is None or plan.scheduler == "none":
        return None
    scheduler = get_scheduler(plan.scheduler)
    try:
        status = ask_status(scheduler, job_id, environ, _ASK_S)
    except WindlassError as error:
        return "unknown", f"{_NO_ANSWER} {job_id}: {error.message}"
    if status.state in _WAITING and not status.fault:
        what = f"{plan.scheduler} reports that job {job_id} can never run" if status.never else f"job {job_id}"
        return "waiting", what + (f": {status.reason}" if status.reason else "")
    if status.state in _RUNNING:
        return "running", f"job {job_id}"
    if status.state is JobState.UNKNOWN and not status.gone:
        return "unknown", f"{_NO_ANSWER} {job_id}: {status.reason}"
    return _ended_job(status, plan.scheduler, job_id)


def _ended_job(status: JobStatus, scheduler: str, job_id: str) -> tuple[State, str] | None:
    """Why a job without a record ended, as its scheduler reports it; None where it reports no reason."""
    more = f": {status.reason}" if status.reason else ""
    if status.never:
        return "failed", f"{scheduler} reports that job {job_id} can never run{more}"
    if status.fault:
        state: State = "killed" if status.fault == "node" else "failed"
        return state, f"{scheduler} reports that job {job_id} {_FAULTS[status.fault]}{more}"
    if status.preempted:
        return "killed", f"{scheduler} reports that job {job_id} was preempted{more}"
    if status.state is JobState.TIMEOUT:
        return "killed", f"{scheduler} reports that job {job_id} reached its time limit{more}"
    if status.state is JobState.CANCELLED:
        return "stopped", f"{scheduler} reports that job {job_id} was cancelled{more}"
    if status.state is JobState.FAILED:
        code = f" with code {status.exit_code}" if status.exit_code else ""
        return "failed", f"{scheduler} reports that job {job_id} failed{code}{more}"
    return None


def _job_id(folder: RunFolder) -> str | None:
    try:
        return read_text(folder.part("job_id")).strip() or None
    except OSError:
        owner = read_owner(folder)
        return owner.job_id if owner else None


def _changed(folder: RunFolder) -> float:
    """When something last happened in it."""
    paths = [folder.part(name) for name in ("result.json", "owner.json", PLAN_FILE, "snapshots.tsv")]
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def holds_snapshots(folder: RunFolder) -> bool:
    """Whether the run wrote its snapshots into its own folder: to remove it would lose them."""
    inside = str(folder.path) + "/"
    return any(line.folder.startswith(inside) and Path(line.folder).exists() for line in read_ledger(folder.path))


def cleanable(
    states: list[RunState], *, older_s: float, keep: int, failed: bool, now: float | None = None
) -> list[RunState]:
    """Runs that may go: done (with `failed`: ended in any way), older than so much, and not among the newest `keep`."""
    at = time.time() if now is None else now
    ended = {"done", "failed", "stopped", "killed"} if failed else {"done"}
    newest = sorted(states, key=lambda state: state.changed, reverse=True)[:keep]
    return [s for s in states if s.state in ended and at - s.changed >= older_s and s not in newest]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """Runs whose folders may go, those that would but for the snapshots that they hold, and those that are not ours."""

    gone: tuple[RunState, ...]
    kept: tuple[RunState, ...]
    foreign: tuple[RunState, ...] = ()

    def remove(self) -> None:
        for state in self.gone:
            shutil.rmtree(state.path)


def choose_cleanable(
    runs_dir: Path, environ: Mapping[str, str], *, older_s: float, keep: int, failed: bool
) -> Cleaning:
    """What `runs clean` would remove. Removes nothing."""
    folders = {str(folder.path): folder for folder in find_folders(runs_dir)}
    states = [state_of(folder, environ) for folder in folders.values()]
    chosen = cleanable(states, older_s=older_s, keep=keep, failed=failed)
    state_dir = read_settings(environ).state_dir
    foreign = tuple(state for state in chosen if not is_own_folder(Path(state.path), state_dir))
    kept = tuple(state for state in chosen if state not in foreign and holds_snapshots(folders[state.path]))
    gone = tuple(state for state in chosen if state not in (*kept, *foreign))
    return Cleaning(gone=gone, kept=kept, foreign=foreign)


_STOP_S = 60.0
_CANCEL_S = 30.0


def stop_run(folder: RunFolder, environ: Mapping[str, str]) -> str | None:
    """Stop a run: it has ended on return, or its job is cancelled, whose id is returned then. Raises `UsageError` where
    it does not run, `MachineError` where it does not end in time, `NotTrustedError` for a folder that is not ours."""
    require_trust(folder.path, read_settings(environ).state_dir)
    owner = read_owner(folder)
    if owner is not None and owner.pid != os.getpid() and owner.alive():
        os.kill(owner.pid, signal.SIGTERM)
        end = time.monotonic() + _STOP_S
        while owner.alive():
            if time.monotonic() > end:
                raise MachineError(f"process {owner.pid} still runs after {_STOP_S:g} s", hint="say it again to insist")
            time.sleep(0.05)
        return None
    state = state_of(folder, environ)
    if state.state not in {"running", "waiting"} or state.job_id is None:
        raise UsageError(f"{folder.path} does not run: {state.state}", hint="`windlass runs list` shows which do")
    scheduler = get_scheduler(read_plan(folder.path).scheduler)
    found = scheduler_environ(scheduler, environ)
    run_command(scheduler.cancel_argv(state.job_id), timeout_s=_CANCEL_S, env=found)
    return state.job_id
