"""Where a figure of a job begins to stand out, for `watch` while it runs and `report` afterwards. Pure.

Limits that somebody published are marked with their source; the others are ours. `docs/howto/why-is-it-slow.md` lists
them for people.
"""

from __future__ import annotations

from typing import Literal

Serious = Literal["error", "warning"]

WAIT_WARN, WAIT_BAD = 0.10, 0.20
"""Share of a step that ranks wait for data: a tenth is where MLPerf Storage draws the line for a healthy input."""
COMM_WARN, COMM_BAD = 0.20, 0.40
"""Share of a step that is communication which no computing hides."""
SLOW_SCORE = 0.75
"""Of the median's speed: below, a rank counts as a straggler, as in NVIDIA's resiliency extension."""
PAUSE_WARN, PAUSE_STEPS = 0.5, 3.0
"""Share of the time that passes in steps far longer than the median, and how far that is. Half of the time is where
saving less often pays more than anything else."""
MEMORY_SHARE = 0.92
"""Of a node's memory limit; the kernel kills a rank at 1."""
IDLE_BUSY = 0.05
"""A device that is busy less than this while others work does nothing."""

THROTTLED: Serious = "error"
IDLE: Serious = "error"
FULL_NODE: Serious = "error"
ALLOC_RETRIES: Serious = "warning"


def input_severity(wait_share: float) -> Serious | None:
    return _severity(wait_share, WAIT_WARN, WAIT_BAD)


def network_severity(comm_share: float) -> Serious | None:
    return _severity(comm_share, COMM_WARN, COMM_BAD)


def is_straggler(own_ms: float, median_ms: float) -> bool:
    """Whether a rank that needs `own_ms` is slow among others that need `median_ms`."""
    return 0 < median_ms <= SLOW_SCORE * own_ms


def is_full(memory_bytes: int | None, limit_bytes: int | None) -> bool:
    return bool(memory_bytes and limit_bytes and memory_bytes > MEMORY_SHARE * limit_bytes)


def is_idle(busy: float) -> bool:
    return busy < IDLE_BUSY


def _severity(share: float, warn: float, bad: float) -> Serious | None:
    if share < warn:
        return None
    return "error" if share >= bad else "warning"
