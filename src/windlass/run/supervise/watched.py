"""The current state of a run: from its samples if it has them, otherwise from its folder and its scheduler."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

import msgspec

from windlass.base.notation.counts import counted
from windlass.base.notation.hostlist import expand_hostlist, fold_hostlist
from windlass.base.notation.shell import quote
from windlass.diagnose.watch.figures import ms_text, pace
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.fold import about_of
from windlass.diagnose.watch.job import Job, NodeRow, Note, RankRow, read_job
from windlass.errors import WindlassError
from windlass.model.finding import SERIOUS, Finding, Severity, worst_first
from windlass.run.failure.ends import read_seats
from windlass.run.failure.verdict import attempt_folders, read_verdict
from windlass.run.folder import RunFolder, component_folder, read_plan
from windlass.run.supervise.attempts import read_owner
from windlass.run.supervise.parts import read_states
from windlass.run.supervise.runs import RunState, state_of

_STALE_S = 60.0


def watched(folder: RunFolder, environ: Mapping[str, str]) -> tuple[Job, tuple[Finding, ...]]:
    """Return the job of a run and its findings, worst first. Every command that judges a run uses this function.

    The result is partial, with a note, if samples are missing or damaged.
    """
    if read_states(folder.path):
        return _with_components(folder, environ)
    try:
        job = read_job(folder.path)
        trouble = "" if job else "nothing was sampled: the run was started without --watch"
    except WindlassError as error:
        job, trouble = None, error.message
    fresh = job is not None and time.time() - job.at < max(_STALE_S, 4 * job.interval_s)
    if job is not None and fresh and not job.ended and not _killed(folder):
        return job, find(job)
    state = state_of(folder, environ)
    if job is None:
        job = _unsampled(folder, state, trouble)
    if state.state == "running" or state.may_live:
        if job.ended and not trouble:  # between two starts, or just before its record is written
            return msgspec.structs.replace(job, ended=False), (_about(state), *_judged(job))
        stale = Finding(
            kind="stale",
            severity="error",
            evidence=f"the last sample came {time.time() - job.at:.0f} s ago",
            advice="windlass of this run may have stopped, or the file system of its folder is slow",
        )
        return job, (_about(state), *find(job)) if trouble else (stale, *find(job))
    job = msgspec.structs.replace(job, ended=state.state != "waiting")
    return job, worst_first((*_ended(folder, state, job), *_judged(job)))


def _with_components(folder: RunFolder, environ: Mapping[str, str]) -> tuple[Job, tuple[Finding, ...]]:
    """Return the job of a job file: its state, one finding per component, and what is serious in each of them."""
    state = state_of(folder, environ)
    found = [*_ended(folder, state, job)] if (job := _unsampled(folder, state, "")).ended else [_about(state)]
    found = [one for one in found if one.kind != "not-measured"] or [_about(state)]
    for one in read_states(folder.path, ended=job.ended and not state.may_live):
        path = component_folder(folder.path, one.name)
        severity: Severity = "error" if one.state == "failed" else "note"
        hosts = fold_hostlist(one.hosts)
        evidence = f"{one.state}{f': {one.why}' if one.why else ''}; on {hosts}" + (
            f"; ready after {one.ready - one.started:.1f} s" if one.ready and one.started else ""
        )
        advice = f"windlass report {quote(str(path))}"
        found.append(Finding("component", severity, evidence, advice, subject=one.name))
        if one.state in {"starting", "ready", "done"}:
            theirs = watched(RunFolder(path), environ)[1]
            found += [msgspec.structs.replace(two, subject=one.name) for two in theirs if two.severity in SERIOUS]
    return msgspec.structs.replace(job, notes=()), worst_first(found)


def _judged(job: Job) -> tuple[Finding, ...]:
    """Return the findings of the rules and the samplers' notes for a job that has ended."""
    known = {"lost", "stalled", "no-step", "unseen", "ended", "starting", "steady"}
    return tuple(finding for finding in find(job) if finding.kind not in known)


def _killed(folder: RunFolder) -> bool:
    """Return whether the windlass process of the run is known to be gone."""
    owner = read_owner(folder)
    return owner is not None and owner.alive() is False


def _ended(folder: RunFolder, state: RunState, job: Job) -> tuple[Finding, ...]:
    """Return how the run ended, and the findings about its speed that still apply."""
    starts = f" (the last of {state.attempts} starts)" if state.attempts > 1 else ""
    if state.state in {"failed", "killed"}:
        advice = "`windlass runs show` shows every start with its evidence"
        return (Finding(kind="failure", severity="error", evidence=_words(state) + starts, advice=advice),)
    if state.state != "done":
        return (_about(state),)
    again = f" after {counted(state.attempts - 1, 'restart')}" if state.attempts > 1 else ""
    if not any(rank.steps for rank in job.ranks):
        advice = "run it with --watch; call windlass.step() once per step where the optimizer is not torch's"
        evidence = f"{_words(state)}{again}; no step was recorded, so the speed is unknown"
        return (Finding(kind="not-measured", severity="note", evidence=evidence, advice=advice),)
    went_on = (Finding(kind="went-on", severity="note", evidence=_failed_starts(folder, state)),) if again else ()
    if any(finding.severity in SERIOUS for finding in find(job)):
        return went_on
    step = ms_text(pace(job).step_ms)
    return (
        *went_on,
        Finding(kind="fine", severity="ok", evidence=f"{_words(state)}; no performance problem found: steps of {step}"),
    )


def _failed_starts(folder: RunFolder, state: RunState) -> str:
    verdicts = [found for path in attempt_folders(folder.path) if (found := read_verdict(path))]
    because = f", the last one because {verdicts[-1].cause.line()}" if verdicts else ""
    return f"{len(verdicts) or state.attempts - 1} of {state.attempts} starts failed{because}"


def _about(state: RunState) -> Finding:
    return Finding(kind="state", severity="note", evidence=_words(state))


def _words(state: RunState) -> str:
    return f"the run is {state.state}" + (f": {state.why}" if state.why else "")


def _unsampled(folder: RunFolder, state: RunState, trouble: str) -> Job:
    """Return nodes and ranks according to the plan and the reports of the ranks."""
    notes = [Note(text=trouble, nodes="")]
    try:
        plan = read_plan(folder.path)
    except WindlassError as error:
        notes.append(Note(text=error.message, nodes=""))
        return Job(at=time.time(), name=folder.path.name, interval_s=2.0, nodes=(), notes=tuple(notes))
    hosts = expand_hostlist(plan.hosts) if plan.hosts else (socket.gethostname().split(".", 1)[0],)
    ended = state.state not in {"running", "waiting"}
    ranks = tuple(
        RankRow(seat.rank, min(seat.rank // plan.ranks_per_node, len(hosts) - 1), "ended" if ended else "command")
        for seat in sorted(read_seats(folder.part("where")))
    )
    return Job(
        at=time.time(),
        name=plan.name,
        interval_s=2.0,
        ended=ended,
        about=about_of(plan),
        nodes=tuple(NodeRow(host, 0.0) for host in hosts),
        ranks=ranks,
        notes=tuple(notes),
    )
