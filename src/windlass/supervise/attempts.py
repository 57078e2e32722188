"""What a run folder remembers: each attempt with its cause and what was decided, the ledger of snapshots, the owner."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from pathlib import Path

import msgspec

from windlass.errors import UsageError
from windlass.failure.root_cause import Cause
from windlass.model.jsontext import from_json, to_json
from windlass.model.record import RunRecord, record_from_json
from windlass.run.folder import RunFolder
from windlass.supervise.decide import Decision, Past

VERDICT_FILE = "verdict.json"
OWNER_FILE = "owner.json"
LEDGER_FILE = "snapshots.tsv"
_ATTEMPT = re.compile(r"attempt-(\d+)\Z")


class Times(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Moments of one attempt, in seconds since 1970, for `bench/supervise.py` and for people."""

    started: float = 0.0
    noticed: float | None = None
    """When windlass knew that it failed."""
    ended: float = 0.0
    """When the last rank was gone."""
    decided: float = 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`verdict.json` of an attempt that did not end well: why, and what was done about it."""

    version: int = 1
    attempt: int
    job_id: str | None = None
    hosts: str = ""
    cause: Cause
    decision: Decision
    from_step: int | None = None
    """The snapshot that it began with."""
    to_step: int | None = None
    """The newest one that it saved."""
    times: Times = Times()
    where: str = ""
    """For a hang: which ranks stood where."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the ledger."""

    at: float
    what: str
    step: int
    folder: str


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The windlass that drives a run now, or drove it last."""

    host: str
    pid: int
    ticks: str
    boot: str
    job_id: str | None = None
    since: float = 0.0

    def alive(self) -> bool | None:
        """Whether it still runs; None where that cannot be told from here."""
        if self.boot != _boot():
            return None
        return bool(self.ticks) and _ticks(self.pid) == self.ticks


def attempt_folders(folder: RunFolder) -> list[Path]:
    """Folders of earlier attempts, oldest first."""
    found = [(int(m[1]), path) for path in folder.path.iterdir() if (m := _ATTEMPT.match(path.name))]
    return [path for _, path in sorted(found)]


def save_verdict(folder: RunFolder, verdict: Verdict) -> None:
    folder.write_bytes(VERDICT_FILE, to_json(verdict))


def read_verdict(path: Path) -> Verdict | None:
    """The verdict in an attempt's folder (or in the run folder, for the last one); None where there is none."""
    try:
        return from_json((path / VERDICT_FILE).read_bytes(), Verdict)
    except (OSError, msgspec.DecodeError):
        return None


def verdicts(folder: RunFolder) -> tuple[Verdict, ...]:
    """Of all attempts so far that ended badly, oldest first."""
    found = [read_verdict(path) for path in (*attempt_folders(folder), folder.path)]
    return tuple(verdict for verdict in found if verdict is not None)


def past_of(verdict: Verdict) -> Past:
    """The same as the decision wants it."""
    return Past(cause=verdict.cause, job=verdict.job_id, progress=verdict.to_step is not None)


def records(folder: RunFolder) -> list[tuple[str, RunRecord]]:
    """The record of each attempt that has one, with the name of its folder, oldest first."""
    found = []
    for path in (*attempt_folders(folder), folder.path):
        file = path / "result.json"
        if file.exists():
            found.append((path.name, record_from_json(file.read_bytes(), where=str(file))))
    return found


def ledger(folder: RunFolder) -> list[Saved]:
    """Snapshots that ranks of this run loaded and saved, oldest first; torn lines are passed over."""
    try:
        text = folder.part(LEDGER_FILE).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        fields = line.split("\t")
        with contextlib.suppress(ValueError):
            if len(fields) == 4:
                found.append(Saved(at=float(fields[0]), what=fields[1], step=int(fields[2]), folder=fields[3]))
    return found


def newest_step(lines: list[Saved]) -> int | None:
    """The furthest step that any snapshot of the run holds."""
    return max((line.step for line in lines), default=None)


# Who drives it


def refuse_running(folder: RunFolder) -> None:
    """A `UsageError` where another windlass drives this run now."""
    other = read_owner(folder)
    if other is not None and other.pid != os.getpid() and other.alive():
        raise UsageError(
            f"{folder.path} is being run by process {other.pid} on {other.host}",
            hint="wait for it, or end it with `windlass runs stop`",
        )


def own(folder: RunFolder, job_id: str | None) -> None:
    """Write down that this process drives the run. Refused where another one does."""
    refuse_running(folder)
    me = Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        ticks=_ticks(os.getpid()),
        boot=_boot(),
        job_id=job_id,
        since=round(time.time(), 3),
    )
    folder.write_bytes(OWNER_FILE, to_json(me))


def read_owner(folder: RunFolder) -> Owner | None:
    try:
        return from_json(folder.part(OWNER_FILE).read_bytes(), Owner)
    except (OSError, msgspec.DecodeError):
        return None


def _ticks(pid: int) -> str:
    """When a process started: tells it from a later one of the same number. Empty where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def _boot() -> str:
    """This start of this machine, and this view of its processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
