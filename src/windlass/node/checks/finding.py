"""What one check says: a name, a status, what was seen, and what to do about it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any

OK, WARN, FAIL, NOT_APPLICABLE = "ok", "warn", "fail", "not applicable"
Finding = dict[str, Any]
_MAX_CHARS = 600


def finding(name: str, status: str, seen: str, remedy: str = "", **facts: Any) -> Finding:
    """One result of a check. `facts` are numbers that somebody else compares."""
    found: Finding = {"name": name, "status": status, "seen": seen[:_MAX_CHARS]}
    if remedy:
        found["remedy"] = remedy[:_MAX_CHARS]
    if facts:
        found["facts"] = facts
    return found


def ok(name: str, seen: str, **facts: Any) -> Finding:
    return finding(name, OK, seen, **facts)


def warn(name: str, seen: str, remedy: str, **facts: Any) -> Finding:
    return finding(name, WARN, seen, remedy, **facts)


def fail(name: str, seen: str, remedy: str, **facts: Any) -> Finding:
    return finding(name, FAIL, seen, remedy, **facts)


def not_applicable(name: str, seen: str) -> Finding:
    return finding(name, NOT_APPLICABLE, seen)


def read_text(path: str) -> str:
    """A small file of /proc or /sys; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def output_of(argv: Sequence[str], timeout_s: float = 8.0, env: dict[str, str] | None = None) -> str:
    """What a tool says on its standard output; empty where it is missing, fails or does not end in time."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def size_text(size: float) -> str:
    """`512 MiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return "%.3g %s" % (size, unit)
        size /= 1024
    return "%.3g TiB" % size


def expanded(path: str) -> str:
    """A path with `${NAME}` filled in from this node's environment."""
    return os.path.expandvars(path)


def listed(words: Sequence[str], limit: int = 6) -> str:
    """`a, b, c and 4 more`."""
    shown: list[str] = list(words[:limit])
    more = len(words) - len(shown)
    return ", ".join(shown) + (" and %d more" % more if more > 0 else "")
