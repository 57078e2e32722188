"""Objects on their way to a node: who waits for one, how it ended, and what came from where."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
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

    __slots__ = ("began", "deadline", "done", "generation", "key", "position", "route", "waiters")

    def __init__(self, key: bytes, route: tuple[int, ...], deadline: float) -> None:
        self.key = key
        self.route = route
        self.position = 0
        self.waiters: list[Done] = []
        self.deadline = deadline
        self.done = False
        self.began = perf_counter()
        self.generation = 0


class Turn(NamedTuple):
    """The next node to ask, None for the shared file system. A flight's replies carry the generation of their turn."""

    generation: int
    node: int | None


_LATE = 1 << 30  # a position behind every route


class FlightTable:
    """The flights of a node by their keys. Everything that changes a flight is here, under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def join(self, key: bytes, route: tuple[int, ...], deadline: float, done: Done) -> Flight | None:
        """Make `done` wait for an object. Returns a new flight, which the caller starts, or None for one under way."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                flight.waiters.append(done)
                return None
            flight = self._flights[key] = Flight(key, route, deadline)
            flight.waiters.append(done)
            return flight

    def claim(self, key: bytes) -> Flight | None:
        """A new flight for an object that this node reads; None where there is one."""
        with self._lock:
            if key in self._flights:
                return None
            flight = self._flights[key] = Flight(key, (), 0.0)
            return flight

    def watch(self, key: bytes, done: Done) -> bool:
        """Make `done` wait for an object that is on its way; False where it is not."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                flight.waiters.append(done)
            return flight is not None

    def find(self, keys: Iterable[bytes]) -> list[Flight | None]:
        with self._lock:
            return [self._flights.get(key) for key in keys]

    def end(self, flight: Flight) -> list[Done] | None:
        """Take a flight out. Returns who waits for it, or None where it has ended already."""
        with self._lock:
            if flight.done:
                return None
            flight.done = True
            self._flights.pop(flight.key, None)
            return flight.waiters

    def next_turn(self, flight: Flight, usable: Callable[[int], bool], generation: int | None) -> Turn | None:
        """Move a flight to its next usable node. None where it has ended, or moved on from `generation` already."""
        with self._lock:
            if flight.done or generation not in (None, flight.generation):
                return None
            flight.generation += 1
            while flight.position < len(flight.route) and time.monotonic() <= flight.deadline:
                node = flight.route[flight.position]
                flight.position += 1
                if usable(node):
                    return Turn(flight.generation, node)
            return Turn(flight.generation, None)

    def take_late(self, now: float) -> list[Flight]:
        """Flights that wait for other nodes beyond their deadline, each once."""
        with self._lock:
            late = [f for f in self._flights.values() if f.route and now > f.deadline and f.position < _LATE]
            for flight in late:
                flight.position = _LATE
            return late


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
