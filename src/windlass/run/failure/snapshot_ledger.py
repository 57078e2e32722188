"""`snapshots.tsv` of a run folder: which snapshots its ranks loaded and saved, one line each."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

LEDGER_FILE = "snapshots.tsv"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the ledger."""

    at: float
    what: str
    step: int
    folder: str


def read_ledger(run_dir: Path) -> list[Saved]:
    """Snapshots that ranks of this run loaded and saved, oldest first; torn lines are passed over."""
    try:
        text = (run_dir / LEDGER_FILE).read_text(encoding="utf-8", errors="surrogateescape")
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
