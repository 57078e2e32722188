"""Pace: a token bucket, back-off with jitter, and who is left alone for how long. Clock and seed come from outside."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

Clock = Callable[[], float]


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up. `take` says how long to wait before going on."""

    def __init__(self, rate: float, burst: float, clock: Clock = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._at = clock()
        self._lock = threading.Lock()

    def take(self, tokens: float = 1.0) -> float:
        """Takes the tokens now, into debt if need be, and returns the seconds until they are earned."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - tokens
            self._at = now
            return 0.0 if self._tokens >= 0 else -self._tokens / self._rate


class NodeHealth:
    """Which nodes to leave out. A failure costs a pause that doubles; wrong bytes cost the rest of the job."""

    FIRST_PAUSE_S = 1.0
    LONGEST_PAUSE_S = 60.0

    def __init__(self, clock: Clock = time.monotonic, seed: int | None = None) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._pauses: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._lock = threading.Lock()
        self.corrupt: set[int] = set()

    def usable(self, node: int) -> bool:
        with self._lock:
            return node not in self.corrupt and self._until.get(node, 0.0) <= self._clock()

    def failed(self, node: int) -> None:
        """Noted once per pause, however many requests went down with it."""
        with self._lock:
            if self._until.get(node, 0.0) > self._clock():
                return
            pause = self._pauses.get(node, self.FIRST_PAUSE_S)
            self._pauses[node] = min(2 * pause, self.LONGEST_PAUSE_S)
            self._until[node] = self._clock() + pause * self._random.uniform(0.75, 1.25)

    def answered(self, node: int) -> None:
        if node in self._pauses:
            with self._lock:
                self._pauses.pop(node, None)
                self._until.pop(node, None)

    def sent_wrong_bytes(self, node: int) -> None:
        with self._lock:
            self.corrupt.add(node)

    def paused(self) -> tuple[int, ...]:
        now = self._clock()
        with self._lock:
            return tuple(sorted({n for n, t in self._until.items() if t > now} | self.corrupt))


def fallback_jitter_s(nodes: int, random_: random.Random) -> float:
    """A random wait before reading the shared file system in another node's place: 8,192 must not do it at once."""
    return random_.uniform(0.0, min(5.0, 0.002 * nodes))
