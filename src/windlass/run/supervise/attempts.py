"""The history in a run folder: the record of each attempt, and the process that drives the run."""

from __future__ import annotations

import os
import time

import msgspec

from windlass.errors import UsageError
from windlass.model.jsontext import from_json, to_json
from windlass.model.record import RunRecord, record_from_json
from windlass.node.sys.identity import Process, this_process
from windlass.node.sys.reading import read_bytes
from windlass.run.failure.verdict import attempt_folders
from windlass.run.folder import RunFolder

OWNER_FILE = "owner.json"
_HANDOVER_S = 30.0
_LOOK_S = 0.2


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The windlass process that drives a run now, or drove it last."""

    host: str
    pid: int
    ticks: str
    boot: str
    job_id: str | None = None
    since: float = 0.0

    def alive(self) -> bool | None:
        """Return whether it still runs. None if that cannot be determined from here."""
        return Process(self.host, self.pid, self.ticks, self.boot).alive()


def records(folder: RunFolder) -> list[tuple[str, RunRecord]]:
    """Return the record of each attempt that has one, with the name of its folder, oldest first."""
    found = []
    for path in (*attempt_folders(folder.path), folder.path):
        file = path / "result.json"
        if file.exists():
            found.append((path.name, record_from_json(read_bytes(file), where=str(file))))
    return found


# The process that drives a run


def refuse_running(folder: RunFolder, *, in_job: bool = False) -> None:
    """Raise `UsageError` if another windlass process drives this run now.

    `in_job`: this process is in a job of a scheduler. The windlass process of the job that has just submitted this one
    gets time to end.
    """
    other = read_owner(folder)
    patience_s = _HANDOVER_S if in_job and other is not None and other.job_id is not None else 0.0
    give_up = time.monotonic() + patience_s
    while other is not None and _drives(other) and time.monotonic() < give_up:
        time.sleep(_LOOK_S)
        other = read_owner(folder)
    if other is not None and _drives(other):
        raise UsageError(
            f"{folder.path} is being run by process {other.pid} on {other.host}",
            hint="wait for it, or end it with `windlass runs stop`",
        )


def _drives(owner: Owner) -> bool:
    return owner.pid != os.getpid() and bool(owner.alive())


def own(folder: RunFolder, job_id: str | None) -> None:
    """Record that this process drives the run. Raises if another process does."""
    refuse_running(folder, in_job=job_id is not None)
    host, pid, ticks, boot = this_process()
    me = Owner(host=host, pid=pid, ticks=ticks, boot=boot, job_id=job_id, since=round(time.time(), 3))
    folder.write_bytes(OWNER_FILE, to_json(me))


def release(folder: RunFolder) -> None:
    """Record that no process drives the run, although this process has not ended yet. Another one may begin."""
    folder.part(OWNER_FILE).unlink(missing_ok=True)


def read_owner(folder: RunFolder) -> Owner | None:
    try:
        return from_json(read_bytes(folder.part(OWNER_FILE)), Owner)
    except (OSError, msgspec.DecodeError):
        return None
