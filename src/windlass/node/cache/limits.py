"""Rate limits: a token bucket, back-off with jitter, and pauses for failed nodes. Clock and seed are parameters."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

Clock = Callable[[], float]


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved. `take` returns how long to wait."""

    def __init__(self, rate: float, burst: float, clock: Clock = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._at = clock()
        self._lock = threading.Lock()

    def take(self, tokens: float = 1.0) -> float:
        """Take the tokens now, into debt if necessary, and return the seconds until they are earned."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - tokens
            self._at = now
            return 0.0 if self._tokens >= 0 else -self._tokens / self._rate


class NodeHealth:
    """Nodes to leave out. A failure causes a pause that doubles. Wrong bytes exclude a node for the rest of the job."""

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
        """Record a failure once per pause, regardless of how many requests failed with it."""
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
    """Return a random wait before this node reads the shared file system instead of another node.

    Without it, 8,192 nodes could read at once.
    """
    return random_.uniform(0.0, min(5.0, 0.002 * nodes))
