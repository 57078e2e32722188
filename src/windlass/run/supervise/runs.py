"""Runs on disk: their state, why they ended, and whether they can continue. Asks the scheduler if needed.

Also stops a run from outside: the windlass process that drives it asks the ranks to save and exit, or its job is
cancelled.
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
from windlass.run.folder import (
    COMMAND_FILE,
    PLAN_FILE,
    FolderUse,
    RunFolder,
    component_folder,
    folder_use,
    is_run,
    open_folder,
    read_plan,
)
from windlass.run.scheduler_commands import ask_status, scheduler_environ
from windlass.run.sidecars.detached import AGENTS_FILE
from windlass.run.supervise.attempts import Owner, read_owner, records
from windlass.run.trust import component_folders, is_own_folder, require_trust

State = Literal["running", "waiting", "done", "resumable", "stopped", "failed", "killed", "unknown"]
"""`waiting`: in the scheduler's queue.

`resumable`: it saved and exited. `killed`: windlass was killed during the run.
"""
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
    """One run in a listing."""

    path: str
    name: str
    state: State
    why: str = ""
    attempts: int = 1
    step: int | None = None
    """Step of the newest snapshot."""
    seconds: float | None = None
    """Duration of all starts together."""
    steps: int | None = None
    """Number of steps of the last start, if it was sampled."""
    step_ms: float | None = None
    """Median step time of the last start."""
    job_id: str | None = None
    changed: float = 0.0
    shape: str = ""
    may_live: bool = False
    """The run may still be running, because the scheduler gives no answer about its job."""


def find_runs(runs_dir: Path) -> list[RunFolder]:
    """Return the run folders below a folder, oldest first."""
    found = [path.parent for path in runs_dir.expanduser().glob(f"*/{PLAN_FILE}") if is_run(path.parent)]
    return [RunFolder(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def find_folders(runs_dir: Path) -> list[RunFolder]:
    """Return the folders of runs and of other commands (`stage`, `tune`), oldest first."""
    others = (path.parent for path in runs_dir.expanduser().glob(f"*/{COMMAND_FILE}"))
    found = {*(folder.path for folder in find_runs(runs_dir)), *others}
    return [RunFolder(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def find_run(text: str | None, runs_dir: Path) -> RunFolder:
    """Find a run by its folder, or by its name below the folder of runs, as `runs list` shows it.

    `RUN/NAME` is a component of a job file. None: the newest run. Raises `UsageError` if there is no such run.
    """
    if text is None:
        found = find_runs(runs_dir)
        if not found:
            raise UsageError(f"no runs in {runs_dir}", hint="give a run folder, or set WINDLASS_RUNS")
        return found[-1]
    path = Path(text)
    if not path.exists() and not path.is_absolute():
        path = runs_dir.expanduser() / text
    if not path.exists():  # `RUN/server` is short for the component's folder
        path = component_folder(path.parent, path.name)
    if not is_run(path):
        raise UsageError(
            f"{text} is not a run folder: there is no {PLAN_FILE} in it",
            hint="`windlass runs list` shows all runs",
        )
    return open_folder(path)


def state_of(folder: RunFolder, environ: Mapping[str, str]) -> RunState:
    """Return the state of a run or of another command. A folder with a damaged file is `unknown`, with the reason."""
    try:
        use = folder_use(folder)
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
    """Return the state of a command that is not a run. Its agents end with the job, or by `windlass cache stop`."""
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
    if owner is not None and owner.pid != os.getpid() and owner.alive():  # this process does not drive the run
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
        return _ended_alone(folder) or told or ("unknown", "it was not started, or an older windlass started it")
    said = said or _ask_scheduler(plan, owner.job_id, environ)
    alive = {"waiting", "running", "unknown"}
    if said is None or (owner.alive() is False and said[0] in alive):
        return "killed", "windlass died without a record"
    return _with_log(folder, said)


def _with_log(folder: RunFolder, said: tuple[State, str]) -> tuple[State, str]:
    """Add the first cause in the log of a failed job's batch script to the scheduler's report."""
    line = log_cause(folder.part("job.log"))[1] if said[0] == "failed" else ""
    return (said[0], f"{said[1]}; its log says: {line}") if line else said


def _ended_alone(folder: RunFolder) -> tuple[State, str] | None:
    """Return how a standalone job ended. Such a job writes its exit code but no record."""
    try:
        code = int(read_text(folder.part(EXIT_FILE)))
    except (OSError, ValueError):
        return None
    return ("done", "a standalone job") if code == 0 else ("failed", f"a standalone job, with code {code}")


def _may_be_queued(folder: RunFolder, owner: Owner | None, job_id: str) -> bool:
    """Return whether the job may be in the queue.

    A job that windlass has left is over unless the scheduler requeued it.
    """
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
    else:  # written by a version that stored no verdict for unsupervised runs
        cause = find_cause(observe(rank_logs(plan, folder.path), record.exit_code, record.failure, stopped=stopped))
    state: State = "resumable" if record.exit_code == RESUME_ME else "stopped" if stopped else "failed"
    return state, cause.line()


def _ask_scheduler(plan: Plan, job_id: str | None, environ: Mapping[str, str]) -> tuple[State, str] | None:
    """Return the scheduler's state of a job. None if it has nothing to report.

    If the scheduler gives no answer, the job may be running: the state is `unknown`, never dead.
    """
    if job_id is None or plan.scheduler == "none":
        return None
    scheduler = get_scheduler(plan.scheduler)
    try:
        status = ask_status(scheduler, job_id, environ, _ASK_S)
    except WindlassError as error:
        return "unknown", f"{_NO_ANSWER} {job_id}: {error.message}"
    if status.state in _WAITING and not status.fault:
        fate = "can never run" if status.never else "was preempted" if status.preempted else ""
        what = f"{plan.scheduler} reports that job {job_id} {fate}" if fate else f"job {job_id}"
        return "waiting", what + (f": {status.reason}" if status.reason else "")
    if status.state in _RUNNING:
        return "running", f"job {job_id}"
    if status.state is JobState.UNKNOWN and not status.gone:
        return "unknown", f"{_NO_ANSWER} {job_id}: {status.reason}"
    return _ended_job(status, plan.scheduler, job_id)


def _ended_job(status: JobStatus, scheduler: str, job_id: str) -> tuple[State, str] | None:
    """Return the scheduler's reason for the end of a job without a record. None without a reason."""
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
    """Return the time of the last change in the run folder."""
    paths = [folder.part(name) for name in ("result.json", "owner.json", PLAN_FILE, "snapshots.tsv")]
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def holds_snapshots(folder: RunFolder) -> bool:
    """Return whether the run wrote its snapshots to its run folder. Removing the folder would lose them."""
    inside = str(folder.path) + "/"
    lines = [line for path in (folder.path, *component_folders(folder.path)) for line in read_ledger(path)]
    return any(line.folder.startswith(inside) and Path(line.folder).exists() for line in lines)


def cleanable(
    states: list[RunState], *, older_s: float, keep: int, failed: bool, now: float | None = None
) -> list[RunState]:
    """Return removable runs: done (with `failed`: ended in any way), old enough, and not among the newest `keep`."""
    at = time.time() if now is None else now
    ended = {"done", "failed", "stopped", "killed"} if failed else {"done"}
    newest = sorted(states, key=lambda state: state.changed, reverse=True)[:keep]
    return [s for s in states if s.state in ended and at - s.changed >= older_s and s not in newest]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """Runs whose folders can be removed, runs kept because they contain snapshots, and runs that are not ours."""

    gone: tuple[RunState, ...]
    kept: tuple[RunState, ...]
    foreign: tuple[RunState, ...] = ()

    def remove(self) -> None:
        for state in self.gone:
            shutil.rmtree(state.path)


def choose_cleanable(
    runs_dir: Path, environ: Mapping[str, str], *, older_s: float, keep: int, failed: bool
) -> Cleaning:
    """Return what `runs clean` would remove. Removes nothing."""
    folders = {str(folder.path): folder for folder in find_folders(runs_dir)}
    states = [state_of(folder, environ) for folder in folders.values()]
    chosen = cleanable(states, older_s=older_s, keep=keep, failed=failed)
    state_dir = read_settings(environ).state_dir
    foreign = tuple(
        state for state in chosen if Path(state.path).is_symlink() or not is_own_folder(Path(state.path), state_dir)
    )
    kept = tuple(state for state in chosen if state not in foreign and holds_snapshots(folders[state.path]))
    gone = tuple(state for state in chosen if state not in (*kept, *foreign))
    return Cleaning(gone=gone, kept=kept, foreign=foreign)


_STOP_S = 60.0
_CANCEL_S = 30.0


def stop_run(folder: RunFolder, environ: Mapping[str, str]) -> str | None:
    """Stop a run. On return it has ended, or its job is cancelled and the job id is returned.

    Raises `UsageError` if it is not running, `MachineError` if it does not end in time, and `NotTrustedError` for a
    folder that is not ours.
    """
    require_trust(folder.path, read_settings(environ).state_dir)
    owner = read_owner(folder)
    if owner is not None and owner.pid != os.getpid() and owner.alive():
        os.kill(owner.pid, signal.SIGTERM)
        end = time.monotonic() + _STOP_S
        while owner.alive():
            if time.monotonic() > end:
                raise MachineError(
                    f"process {owner.pid} still runs after {_STOP_S:g} s", hint="run the same command again to kill it"
                )
            time.sleep(0.05)
        return None
    state = state_of(folder, environ)
    if state.state not in {"running", "waiting"} or state.job_id is None:
        raise UsageError(
            f"{folder.path} does not run: {state.state}", hint="`windlass runs list` shows the running ones"
        )
    scheduler = get_scheduler(read_plan(folder.path).scheduler)
    found = scheduler_environ(scheduler, environ)
    run_command(scheduler.cancel_argv(state.job_id), timeout_s=_CANCEL_S, env=found)
    return state.job_id
