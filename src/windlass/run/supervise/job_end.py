"""The end of a job of several components: which of them failed first, the record and the verdict of the job."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Sequence

import msgspec

from windlass.base.notation.hostlist import fold_hostlist
from windlass.base.notation.shell import quote
from windlass.errors import WindlassError
from windlass.model.jsontext import to_json
from windlass.model.record import RankFailure, RunRecord
from windlass.run.execute import RanksEnd
from windlass.run.failure.decide import Decision
from windlass.run.failure.root_cause import Cause
from windlass.run.failure.verdict import VERDICT_FILE, Times, Verdict, attempt_folders, read_verdict
from windlass.run.planning import Run
from windlass.run.supervise.parts import Part, failed_parts, needs_of
from windlass.run.verdict import is_late, save_record

SETTLE_S = 1.0
"""The failure of one component may be the consequence of another's that is not visible yet."""


def judge_job(
    run: Run, parts: Sequence[Part], first: Part | None, began: float, stopped_by: signal.Signals | None
) -> RunRecord:
    """Save and return the record of the job, with the component that failed first as its cause.

    `first` is the component whose failure ended the job, if any.
    """
    hosts = tuple(dict.fromkeys(host for part in parts for host in part.state.hosts))
    end = RanksEnd(hosts=hosts, code=0, started=began, ended=time.time())
    failed = failed_parts(parts)
    if stopped_by is not None and first is None:
        allocation = run.context.allocation
        if stopped_by is signal.SIGALRM or is_late(allocation.end_time_s if allocation else None):
            _save_verdict(run, end, Cause(kind="walltime", reason="the allocation's time is up"))
        path = quote(str(run.folder.path))
        run.view.note(f"windlass: stopped after {end.ended - began:.1f} s; go on with: windlass runs resume {path}")
        return save_record(run, dataclasses.replace(end, stopped_by=stopped_by))
    if not failed:
        if not run.quiet:
            took = end.ended - began
            run.view.note(f"windlass: all components finished after {took:.1f} s; run folder {run.folder.path}")
        return save_record(run, end)
    root = _root(parts, first or failed[0])
    for part in failed:
        text = f"{part.name} failed: {part.state.why}"
        if part is not root and root.name in needs_of(parts, part):
            text = f"{part.name} failed because {root.name} failed first: {root.state.why}"
        if part is not first or part is not root:
            run.view.note(f"windlass: {text}")
    known = read_verdict(root.run.folder.path)
    if known is None:  # otherwise its own run has printed where to read more
        run.view.note(f"windlass: output of {root.name}: windlass logs {quote(str(root.run.folder.path))}")
    record = root.record
    code = record.exit_code if record is not None and record.outcome != "stopped" else 1
    cause = known.cause if known else Cause(kind="transient", reason="")
    reason = f"{root.name}: {root.state.why}"
    _save_verdict(run, end, msgspec.structs.replace(cause, reason=reason, rank=None, host=None))
    failure = record.failure if record is not None and record.failure is not None else RankFailure(rank=None)
    failure = msgspec.structs.replace(failure, log=None, last_lines=(), said=f"{root.name} failed: {root.state.why}")
    return save_record(run, dataclasses.replace(end, code=code or 1), failure=failure)


def _root(parts: Sequence[Part], part: Part) -> Part:
    """Return the failed component that explains the failure of this one: one that it needs, and failed earlier."""
    needs, latest = needs_of(parts, part), part.failed_at + SETTLE_S
    earlier = [other for other in failed_parts(parts) if other.name in needs and other.failed_at <= latest]
    return min(earlier, key=lambda other: other.failed_at, default=part)


def _save_verdict(run: Run, end: RanksEnd, cause: Cause) -> None:
    verdict = Verdict(
        attempt=len(attempt_folders(run.folder.path)),
        cause=cause,
        decision=Decision(action="stop", why="the job has ended"),
        hosts=fold_hostlist(end.hosts),
        times=Times(started=end.started, ended=end.ended),
    )
    with contextlib.suppress(WindlassError):
        run.folder.write_bytes(VERDICT_FILE, to_json(verdict))
