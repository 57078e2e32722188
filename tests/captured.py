"""Captured output of real schedulers and launchers, for tests that feed it to parsers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "captured"


@dataclass(frozen=True)
class Capture:
    """A command that somebody ran on the real thing."""

    name: str
    command: str
    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stderr.splitlines()


def captures(path: str) -> dict[str, Capture]:
    """Every capture of one collection (`slurm/messages.json`, `openpbs/refusals.json`), by name."""
    entries = json.loads((FOLDER / path).read_text())
    return {
        entry["name"]: Capture(
            name=entry["name"],
            command=entry["command"],
            code=entry["code"],
            stdout=entry.get("stdout", ""),
            stderr=entry["stderr"],
        )
        for entry in entries
    }


def text(path: str) -> str:
    """One captured file; bytes that are not UTF-8 become surrogates, as when windlass reads a command's output."""
    return (FOLDER / path).read_text(errors="surrogateescape")
