"""The record of an attack, for the table in the documentation."""

from __future__ import annotations

import json
import os

VARIABLE = "WINDLASS_ATTACKS"


def record(attack: str, *, expected: str, seen: str, **counts: int) -> None:
    """Append what came of an attack to the file that the variable names; nothing where it names none."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = json.dumps({"attack": attack, "expected": expected, "seen": seen, "counts": counts}) + "\n"
    # One write of one line: tests that run side by side do not mix theirs.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
