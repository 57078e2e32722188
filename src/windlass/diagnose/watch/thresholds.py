"""Limits above which a figure of a job is a finding, for `watch` during a run and `report` after it.

Published limits are marked with their source. The others are from this project. `docs/howto/why-is-it-slow.md` lists
them for users.
"""

from __future__ import annotations

from typing import Literal

Serious = Literal["error", "warning"]

WAIT_WARN, WAIT_BAD = 0.10, 0.20
"""Share of a step in which ranks wait for data. MLPerf Storage uses a tenth as the limit for a healthy input."""
COMM_WARN, COMM_BAD = 0.20, 0.40
"""Share of a step for communication that computation does not hide."""
SLOW_SCORE = 0.75
"""Share of the median's speed. A rank below it is a straggler, as in NVIDIA's resiliency extension."""
SLOW_SAMPLES, SLOW_SHARE, SAME_RANK = 3, 0.25, 0.6
"""Samples with a slow rank, their share of all samples, and the share of them in which it is the same rank."""
SAVE_WARN, PAUSE_WARN = 0.25, 0.5
"""Share of the time after the start. Saving in the background is worth it from a quarter on. A long evaluation can be
intended, but half of the time is rarely intended."""
MEMORY_SHARE = 0.92
"""Share of a node's memory limit. The kernel kills a rank at 1."""
IDLE_BUSY = 0.05
"""A device that is busy less than this while others work counts as idle."""
THROTTLED_SHARE = 0.2
"""Share of the samples. A healthy device can reach its power limit for a moment."""
GIL_US = 2_500.0
"""Half of Python's switch interval. If no other thread works, the lock returns in microseconds."""
DELAY_WARN = 0.2
"""Share of the time in which a rank is ready but has no core. Like WAIT_BAD, it is a part of each step."""
STARTUP_S, STARTUP_LIVE_S, STARTUP_SHARE = 60.0, 300.0, 0.2
"""Seconds and share of the run before the first step. For a running job the total duration is unknown."""


def severity(share: float, warn: float, bad: float) -> Serious | None:
    if share < warn:
        return None
    return "error" if share >= bad else "warning"


def is_straggler(own_ms: float, median_ms: float) -> bool:
    """Whether a rank that needs `own_ms` is slow compared with others that need `median_ms`."""
    return 0 < median_ms <= SLOW_SCORE * own_ms
