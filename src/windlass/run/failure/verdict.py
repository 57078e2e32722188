"""The verdict on an attempt that did not finish: root cause, decision and progress. Saved as `verdict.json`.

`judge` is the only function that creates a verdict from evidence, for runs that start once and for supervised runs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from windlass.base.notation.shell import quote
from windlass.model.jsontext import from_json
from windlass.model.record import RunRecord
from windlass.node.sys.reading import open_plain, read_bytes
from windlass.run.failure.decide import Decision, Past, RestartOptions, decide
from windlass.run.failure.ends import newest_step, read_ledger
from windlass.run.failure.evidence import keep_evidence
from windlass.run.failure.root_cause import Cause, Observed, find_cause, first_end
from windlass.run.failure.signs import first_sign_line, sign_of

VERDICT_FILE = "verdict.json"
_ATTEMPT = re.compile(r"attempt-([0-9]{1,6})\Z")
_HINT_BYTES = 1 << 16


class Times(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times of one attempt, in seconds since 1970, for `bench/supervise.py` and for the user."""

    started: float = 0.0
    noticed: float | None = None
    """When windlass detected the failure."""
    failed: float | None = None
    """When the first failed rank ended, by the clock of its node."""
    ended: float = 0.0
    """When the last rank had ended."""
    decided: float = 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`verdict.json` of an attempt that did not finish: the cause and the decision."""

    version: int = 1
    attempt: int
    job_id: str | None = None
    hosts: str = ""
    cause: Cause
    decision: Decision
    from_step: int | None = None
    """Step of the snapshot that the attempt loaded."""
    to_step: int | None = None
    """Step of the newest snapshot that it saved."""
    times: Times = Times()
    where: str = ""
    """For a hang: the states of the ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One ended start of a run. `session` distinguishes the jobs of the run."""

    folder: Path
    number: int
    session: str
    hosts: str
    started: float
    ended: float
    noticed: float | None = None


def judge(
    attempt: Attempt,
    seen: Observed,
    past: tuple[Past, ...],
    options: Callable[[Cause], RestartOptions],
    states: str = "",
) -> Verdict:
    """Save the evidence, find the root cause, and decide. Never raises.

    `past` are the earlier attempts. `options` is what the user allows and the available resources, which may depend on
    the cause.
    """
    keep_evidence(attempt.folder, seen, states)
    lines = read_ledger(attempt.folder)
    earlier = newest_step([line for line in lines if line.at < attempt.started])
    mine = [line for line in lines if line.at >= attempt.started]
    saved = newest_step([line for line in mine if line.what == "saved"])
    progress = saved if saved is not None and (earlier is None or saved > earlier) else None
    if seen.step is None:  # the ranks' heartbeats are exact, but some ranks send none
        seen = msgspec.structs.replace(seen, step=newest_step(lines))
    cause = find_cause(seen)
    this = Past(cause=cause, job=attempt.session, progress=progress is not None)
    return Verdict(
        attempt=attempt.number,
        job_id=attempt.session,
        hosts=attempt.hosts,
        cause=cause,
        decision=decide(cause, (*past, this), options(cause)),
        from_step=next((line.step for line in mine if line.what == "loaded"), None),
        to_step=progress,
        times=Times(
            started=attempt.started,
            noticed=attempt.noticed,
            failed=first.at if (first := first_end(seen)) is not None and first.at < math.inf else None,
            ended=attempt.ended,
            decided=round(time.time(), 3),
        ),
        where=states,
    )


def attempt_folders(run_dir: Path) -> list[Path]:
    """Return the folders of earlier attempts, oldest first."""
    folders = (path for path in run_dir.iterdir() if path.is_dir() and not path.is_symlink())
    found = [(int(m[1]), path) for path in folders if (m := _ATTEMPT.match(path.name))]
    return [path for _, path in sorted(found)]


def read_verdict(path: Path) -> Verdict | None:
    """Return the verdict in an attempt's folder (the run folder for the last attempt). None without one."""
    try:
        return from_json(read_bytes(path / VERDICT_FILE), Verdict)
    except (OSError, msgspec.DecodeError):
        return None


def past_attempts(run_dir: Path) -> tuple[Past, ...]:
    """Return all attempts so far that did not finish, oldest first, as input for the decision."""
    found = [read_verdict(path) for path in (*attempt_folders(run_dir), run_dir)]
    return tuple(past_of(verdict) for verdict in found if verdict is not None)


def past_of(verdict: Verdict) -> Past:
    return Past(cause=verdict.cause, job=verdict.job_id, progress=verdict.to_step is not None)


def verdict_lines(verdict: Verdict, record: RunRecord, run_dir: Path, *, shown: Callable[[int], bool]) -> list[str]:
    """Format the end of an attempt: the root cause in one sentence, its rank's last lines, and where to read more.

    The last lines are left out if the terminal has already `shown` them.
    """
    cause, seconds = verdict.cause, record.seconds
    if cause.kind == "stopped":
        return [f"windlass: stopped after {seconds:.1f} s; run folder {run_dir}"]
    lines = [f"windlass: {cause.line()}"]
    if verdict.where:
        lines.append(f"windlass: {verdict.where}")
    if cause.rank is None:
        launcher_log = run_dir / "launcher.log"
        if cause.kind in {"transient", "memory", "node"} and launcher_log.exists():
            if hint := log_cause(launcher_log)[0]:
                lines.append(f"windlass: hint: {hint}")
            lines.append(f"windlass: all output of the launcher: {launcher_log}")
        return lines
    failure = record.failure
    if failure is not None and failure.rank == cause.rank and failure.last_lines and not shown(cause.rank):
        lines.append(f"windlass: its last lines ({run_dir}/{failure.log}):")
        lines += [f"  | {line}" for line in failure.last_lines]
    took = verdict.times.ended - (verdict.times.failed or math.inf)
    others = record.nodes * record.ranks_per_node > 1 and 0 <= took <= seconds  # clocks of nodes may differ
    ending = f"; it took {took:.1f} s to end all other ranks" if others else ""
    lines.append(f"windlass: the run lasted {seconds:.1f} s{ending}")
    run = quote(str(run_dir))
    lines.append(f"windlass: output of this rank: windlass logs {run} --rank {cause.rank}")
    return [*lines, f"windlass: settings and their reasons: windlass explain {run}"]


def ending_lines(
    verdict: Verdict, record: RunRecord, run_dir: Path, *, shown: Callable[[int], bool], supervised: bool
) -> list[str]:
    """Return `verdict_lines`, and for a supervised run the decision."""
    lines, decision = verdict_lines(verdict, record, run_dir, shown=shown), verdict.decision
    if not supervised or verdict.cause.kind == "stopped":
        return lines
    step = newest_step(read_ledger(run_dir))
    since = f" from the snapshot of step {step}" if step is not None else " from the beginning"
    if decision.action == "restart":
        return [*lines, f"windlass: {decision.why}; restarting{since}"]
    if decision.action == "resubmit":
        return [*lines, f"windlass: {decision.why}; the run continues in another job"]
    return [
        *lines,
        f"windlass: no restart: {decision.why}" + (f" ({decision.hint})" if decision.hint else ""),
        f"windlass: evidence is in {run_dir}/evidence; all attempts: windlass runs show {quote(str(run_dir))}",
    ]


def log_cause(log: Path) -> tuple[str, str]:
    """Return the remedy for the first cause in a log of a launcher or of a batch script, and the line.

    Both are empty if the log names no cause or cannot be read.
    """
    try:
        with open_plain(log) as file:
            lines = file.read(_HINT_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return "", ""
    line = first_sign_line(lines)
    sign = sign_of(line)
    return (sign.remedy, line) if sign is not None else ("", "")
