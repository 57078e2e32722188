"""Objects on their way to a node: who waits for one, how it ended, and what came from where."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class FetchResult(NamedTuple):
    """An object is here: in the store (`data` None), or in hand where the store could not take it. Or it is not."""

    digest: bytes = b""
    data: bytes | None = None
    error: OSError | None = None


Done = Callable[[FetchResult], None]


class Counts:
    """What came from where."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {"local": 0, "parent": 0, "peer": 0, "shared": 0}
        self.bytes: dict[str, int] = {"local": 0, "parent": 0, "peer": 0, "shared": 0}
        self.fallbacks = 0
        self.failovers = 0
        self.corrupt = 0
        self.changed = 0
        self.errors = 0

    def add(self, origin: str, size: int) -> None:
        self.calls[origin] += 1
        self.bytes[origin] += size


class Flight:
    """An object that is on its way to this node, and who waits for it."""

    __slots__ = ("asked", "began", "deadline", "done", "generation", "key", "position", "route", "waiters")

    def __init__(self, key: bytes, route: tuple[int, ...], deadline: float) -> None:
        self.key = key
        self.route = route
        self.position = 0
        self.waiters: list[Done] = []
        self.deadline = deadline
        self.done = False
        self.asked = -1
        self.began = perf_counter()
        self.generation = 0


class Landing:
    """A callback for an outcome that a thread waits for, or comes back for."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._outcome: FetchResult | None = None

    def __call__(self, outcome: FetchResult) -> None:
        self._outcome = outcome
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> FetchResult | None:
        """The outcome, or None where there is none in time."""
        self._event.wait(timeout_s)
        return self._outcome
