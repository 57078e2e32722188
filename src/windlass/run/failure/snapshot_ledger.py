"""`snapshots.tsv` of a run folder: which snapshots its ranks loaded and saved, one line each."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from windlass.node.sys.reading import read_text

LEDGER_FILE = "snapshots.tsv"
_END_OF_TIME = 1 << 40
_MAX_STEP = 1 << 62


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the ledger."""

    at: float
    what: str
    step: int
    folder: str


def read_ledger(run_dir: Path) -> list[Saved]:
    """Snapshots that ranks of this run loaded and saved, oldest first; torn lines are passed over."""
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
    """The furthest step that any snapshot of the run holds."""
    return max((line.step for line in lines), default=None)
