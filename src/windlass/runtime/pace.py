"""How often a run looks up from its work: when to talk to the other ranks, when a snapshot is due. Pure but for state.

Ranks must talk at the same step, so the count of steps until the next talk comes from numbers that all of them have.
"""

from __future__ import annotations

_AGREE_S = 0.5
_MAX_STEPS = 64  # steps that suddenly become slow delay a stop request by at most this many of them


class SavePace:
    """Counts calls between two agreements and the time between two snapshots."""

    def __init__(self, *, every_s: float | None, every_steps: int | None, shared: bool, now: float) -> None:
        self._every_s = every_s
        self._every_steps = every_steps
        self._shared = shared
        self.agree_s = min(_AGREE_S, every_s / 4) if every_s else _AGREE_S
        self._calls = 0
        self._wait_calls = 1
        self._unsaved_steps = 0
        self._last_agreed = now
        self._last_saved = now

    def quiet(self, now: float) -> bool:
        """True where this call needs no look. Several ranks count calls; one rank alone may look at the clock."""
        self._calls += 1
        self._unsaved_steps += 1
        if self._calls < self._wait_calls:
            return True
        return not self._shared and self._every_steps is None and now - self._last_agreed < self.agree_s

    def due(self, now: float) -> bool:
        """True where a snapshot is due by time or by count."""
        by_count = self._every_steps is not None and self._unsaved_steps >= self._every_steps
        return by_count or (self._every_s is not None and now - self._last_saved >= self._every_s)

    def step_us(self, now: float) -> int:
        """Microseconds per call since the last agreement."""
        return int((now - self._last_agreed) / max(self._calls, 1) * 1e6)

    def agreed(self, now: float, step_us: int) -> None:
        """An agreement took place. `step_us` is the slowest rank's, so every rank computes the same next count."""
        wish = int(self.agree_s * 1e6 / max(step_us, 1))
        self._wait_calls = max(1, min(wish, 2 * self._wait_calls, _MAX_STEPS))
        if self._every_steps is not None:
            self._wait_calls = max(1, min(self._wait_calls, self._every_steps - self._unsaved_steps))
        self._calls = 0
        self._last_agreed = now

    def saving(self, now: float) -> None:
        """A save begins now."""
        self._last_saved = now
        self._unsaved_steps = 0
        if self._every_steps is not None:
            self._wait_calls = max(1, min(self._wait_calls, self._every_steps))
