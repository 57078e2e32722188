"""Read the reports of rank scripts: the location of each rank (`where/<node>`) and its end (`ends/<node>`).

Ends are reported only on request. Also reads `snapshots.tsv` of a run folder: which snapshots its ranks loaded and
saved, one per line.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from windlass.node.sys.reading import read_text
from windlass.run.failure.rank_logs import RankLogs


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended. `code` is the exit code in the form that a shell reports."""

    at: float
    """Seconds since 1970 by the node's clock. Infinite if the output of its `date` is not a number."""
    rank: int
    host: str
    code: int
    reported: bool = True
    """Whether the rank script reported it. Otherwise only the launcher reported it."""

    @property
    def signal(self) -> int | None:
        return self.code - 128 if 128 < self.code < 128 + 65 else None


class Seat(NamedTuple):
    """The actual location of a rank."""

    rank: int
    host: str
    cpus: str
    device: str
    pid: int


def read_ends(logs: RankLogs) -> tuple[End, ...]:
    """Return every end that a rank script reported, earliest first, with the scheduler's host names."""
    found = [
        End(at=_seconds(at), rank=int(rank), host=logs.host(int(rank), host), code=int(code))
        for at, rank, host, code in _rows(logs.folder / "ends", 4)
        if is_count(rank) and is_count(code)
    ]
    return tuple(sorted(found, key=lambda end: end.at))


def any_failed(run_dir: Path) -> bool:
    """Return whether any rank script has reported a failure so far."""
    return any(is_count(row[3]) and int(row[3]) != 0 for row in _rows(run_dir / "ends", 4))


def all_finished(run_dir: Path, world_size: int) -> bool:
    """Return whether every rank script has reported an end with code 0 so far."""
    ended = {row[1] for row in _rows(run_dir / "ends", 4) if row[3] == "0"}
    return len(ended) >= world_size


def read_seats(folder: Path) -> list[Seat]:
    """Return every rank that has reported its location."""
    return [
        Seat(int(rank), host, cpus, device, int(pid))
        for rank, host, cpus, device, pid in _rows(folder, 5)
        if is_count(rank) and is_count(pid)
    ]


def _rows(folder: Path, count: int) -> Iterator[list[str]]:
    """Yield lines with this number of fields from all files of a folder. Other lines are incomplete and skipped."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            text = read_text(file, within=folder.parent, errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            fields = line.split("\t")
            if len(fields) == count:
                yield fields


def is_count(text: str) -> bool:
    """Return whether this is a valid number of a rank, exit code or process."""
    return text.isascii() and text.isdecimal() and len(text) < 10


def _seconds(text: str) -> float:
    """Parse a time. Some `date` commands do not support nanoseconds and print `%N` literally."""
    try:
        found = float(text.removesuffix("%N"))
    except ValueError:
        return math.inf
    return math.inf if math.isnan(found) else found


LEDGER_FILE = "snapshots.tsv"
MOMENTS = ("imported", "met", "stepped")
"""Lines that name no snapshot."""
_END_OF_TIME = 1 << 40
_MAX_STEP = 1 << 62


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the ledger."""

    at: float
    what: str
    step: int
    folder: str


def read_ledger(run_dir: Path) -> list[Saved]:
    """Return the snapshots that ranks of this run loaded and saved, oldest first. Incomplete lines are skipped."""
    try:
        text = read_text(run_dir / LEDGER_FILE, errors="surrogateescape")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        fields = line.split("\t")
        with contextlib.suppress(ValueError):
            if len(fields) == 4:
                at, step = float(fields[0]), int(fields[2])
                if 0 <= at < _END_OF_TIME and 0 <= step < _MAX_STEP:
                    found.append(Saved(at=at, what=fields[1], step=step, folder=fields[3]))
    return found


def newest_step(lines: list[Saved]) -> int | None:
    """Return the highest step in any snapshot of the run."""
    return max((line.step for line in lines if line.what not in MOMENTS), default=None)
