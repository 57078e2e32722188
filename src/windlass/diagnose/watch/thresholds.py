"""Where a figure of a job begins to stand out, for `watch` while it runs and `report` afterwards.

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
SLOW_SAMPLES, SLOW_SHARE, SAME_RANK = 3, 0.25, 0.6
"""Samples with a slow rank, their share of all, and the share of them in which it is the same one."""
SAVE_WARN, PAUSE_WARN = 0.25, 0.5
"""Share of the time after the start. Saving in the background pays from a quarter on. An evaluation may be long on
purpose, half of the time is rarely meant."""
MEMORY_SHARE = 0.92
"""Of a node's memory limit; the kernel kills a rank at 1."""
IDLE_BUSY = 0.05
"""A device that is busy less than this while others work does nothing."""
THROTTLED_SHARE = 0.2
"""Of the samples. A device that reaches its power limit for a moment is healthy."""
GIL_US = 2_500.0
"""Half of Python's switch interval: without another thread at work the lock comes back in microseconds."""
DELAY_WARN = 0.2
"""Share of the time that a rank is ready and has no core, as with WAIT_BAD a part of each step."""
STARTUP_S, STARTUP_LIVE_S, STARTUP_SHARE = 60.0, 300.0, 0.2
"""Seconds and share of the run before the first step. How long a running job will run is not known."""


def severity(share: float, warn: float, bad: float) -> Serious | None:
    if share < warn:
        return None
    return "error" if share >= bad else "warning"


def is_straggler(own_ms: float, median_ms: float) -> bool:
    """Whether a rank that needs `own_ms` is slow among others that need `median_ms`."""
    return 0 < median_ms <= SLOW_SCORE * own_ms
