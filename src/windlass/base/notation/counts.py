"""Counts as people read them and as Slurm writes them.

Sizes in bytes, as people write and read them.
"""

from __future__ import annotations

import re
import time

from windlass.errors import UsageError

_MAX_NODES = 1_000_000
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?\Z")


def counted(count: object, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parse_counts(text: str, what: str = "tasks of each node") -> tuple[int, ...]:
    """`2(x3),1` as (2, 2, 2, 1): one number per node, as Slurm writes them. Anything else is a `UsageError`."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.match(part.strip())
        if match is None:
            raise UsageError(f"{what}: not a list of counts: {text[:80]!r}", hint="Slurm writes it as in 2(x3),1")
        times = int(match[2] or 1)
        if len(counts) + times > _MAX_NODES:
            raise UsageError(f"{what}: more than {_MAX_NODES} nodes: {text[:80]!r}", hint="give fewer")
        counts.extend([int(match[1])] * times)
    return tuple(counts)


def local_time(at: float, pattern: str) -> str:
    """A point in time as people here write it; `?` for one that no calendar has."""
    try:
        return time.strftime(pattern, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"


def parse_size(text: str, what: str) -> int:
    """Bytes of `512M`, `2G` or a plain number; powers of 1024. Anything else is a `UsageError` that names `what`."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{what} {text[:80]!r} is not a size", hint="write 512M or 2G")
    return int(float(match.group(1)) * 1024 ** " KMGT".index(match.group(2).upper() or " "))


def size_text(count: float) -> str:
    """`512 B`, `2.5 MB`: three figures and a unit; powers of 1000, as storage and networks count."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def duration_text(seconds: float | None) -> str:
    """`12.3 s`, `4 min 05 s`, `3 h 07 min`."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60):02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
