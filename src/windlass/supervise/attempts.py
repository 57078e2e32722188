"""What a run folder remembers: the record of each attempt, and who drives the run."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from windlass.errors import UsageError
from windlass.failure.verdict import attempt_folders
from windlass.model.jsontext import from_json, to_json
from windlass.model.record import RunRecord, record_from_json
from windlass.run.folder import RunFolder

OWNER_FILE = "owner.json"


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


def records(folder: RunFolder) -> list[tuple[str, RunRecord]]:
    """The record of each attempt that has one, with the name of its folder, oldest first."""
    found = []
    for path in (*attempt_folders(folder.path), folder.path):
        file = path / "result.json"
        if file.exists():
            found.append((path.name, record_from_json(file.read_bytes(), where=str(file))))
    return found


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
