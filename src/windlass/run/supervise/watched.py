"""What can be said of a run now: its samples where it has them, else what its folder and its scheduler know."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from windlass.base.notation.hostlist import expand_hostlist
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.job import Job, NodeRow, Note, RankRow, read_job
from windlass.errors import WindlassError
from windlass.model.finding import Finding, Severity
from windlass.run.failure.ends import read_seats
from windlass.run.folder import RunFolder, read_plan
from windlass.run.supervise.attempts import read_owner
from windlass.run.supervise.runs import RunState, state_of

_STALE_S = 60.0


def watched(folder: RunFolder, environ: Mapping[str, str]) -> tuple[Job, tuple[Finding, ...]]:
    """The job of a run and what stands out. Partial, with a note, where samples are missing or damaged."""
    try:
        job = read_job(folder.path)
        trouble = "" if job else "nothing was sampled: the run was started without --watch"
    except WindlassError as error:
        job, trouble = None, error.message
    fresh = job is not None and time.time() - job.at < max(_STALE_S, 4 * job.interval_s)
    if job is not None and fresh and not job.ended and not _killed(folder):
        return job, find(job)
    state = state_of(folder, environ)
    if job is not None and job.ended and state.state in {"done", "running"}:  # it says so a moment before its record
        return job, find(job)
    if job is None:
        job = _unsampled(folder, state, trouble)
        return job, (_about(state), *(f for f in find(job) if f.kind == "note"))
    if state.state == "running" or state.may_live:
        stale = Finding(
            kind="stale",
            severity="error",
            evidence=f"the last sample came {time.time() - job.at:.0f} s ago",
            advice="is the windlass of the run stopped, or the file system of its folder slow?",
        )
        return job, (stale, *find(job))
    known = {"lost", "stalled", "ended", "starting", "steady"}
    return job, (_about(state), *(finding for finding in find(job) if finding.kind not in known))


def _killed(folder: RunFolder) -> bool:
    """Whether the windlass of the run is known to be gone."""
    owner = read_owner(folder)
    return owner is not None and owner.alive() is False


def _about(state: RunState) -> Finding:
    words = f"the run is {state.state}" + (f": {state.why}" if state.why else "")
    failed = state.state in {"failed", "killed"}
    severity: Severity = "ok" if state.state == "done" else "error" if failed else "note"
    return Finding(kind="state", severity=severity, evidence=words)


def _unsampled(folder: RunFolder, state: RunState, trouble: str) -> Job:
    """Nodes and ranks as the plan and the ranks' own words have them."""
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
        nodes=tuple(NodeRow(host, 0.0) for host in hosts),
        ranks=ranks,
        notes=tuple(notes),
    )
