"""Counts as people read them and as Slurm writes them."""

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
