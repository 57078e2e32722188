"""Objects in transit to a node: waiting requests, results, and counts per origin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import NamedTuple


class FetchResult(NamedTuple):
    """The result of a fetch: the object is in the store (`data` is None), in `data`, or not available (`error`).

    `data` holds the bytes if the store could not keep the object.
    """

    digest: bytes = b""
    data: bytes | None = None
    error: OSError | None = None


Done = Callable[[FetchResult], None]


class Counts:
    """Calls and bytes per origin."""

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
    """An object in transit to this node, with its waiting requests."""

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
    """The next node to ask, or None for the shared file system. Replies carry the generation of their turn."""

    generation: int
    node: int | None


_LATE = 1 << 30  # a position after the end of every route


class FlightTable:
    """The flights of a node by key. All changes of a flight are made here, under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def join(self, key: bytes, route: tuple[int, ...], deadline: float, done: Done) -> Flight | None:
        """Add `done` as a waiter for an object.

        Return a new flight for the caller to start, or None if one is in progress.
        """
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                flight.waiters.append(done)
                return None
            flight = self._flights[key] = Flight(key, route, deadline)
            flight.waiters.append(done)
            return flight

    def claim(self, key: bytes) -> Flight | None:
        """Return a new flight for an object that this node reads, or None if one exists."""
        with self._lock:
            if key in self._flights:
                return None
            flight = self._flights[key] = Flight(key, (), 0.0)
            return flight

    def watch(self, key: bytes, done: Done) -> bool:
        """Add `done` as a waiter for an object in transit. Return False if the object is not in transit."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                flight.waiters.append(done)
            return flight is not None

    def find(self, keys: Iterable[bytes]) -> list[Flight | None]:
        with self._lock:
            return [self._flights.get(key) for key in keys]

    def end(self, flight: Flight) -> list[Done] | None:
        """Remove a flight. Return its waiters, or None if it has ended already."""
        with self._lock:
            if flight.done:
                return None
            flight.done = True
            self._flights.pop(flight.key, None)
            return flight.waiters

    def next_turn(self, flight: Flight, usable: Callable[[int], bool], generation: int | None) -> Turn | None:
        """Move a flight to its next usable node.

        Return None if the flight has ended or has already moved on from `generation`.
        """
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
        """Return each flight that waits for other nodes beyond its deadline, once."""
        with self._lock:
            late = [f for f in self._flights.values() if f.route and now > f.deadline and f.position < _LATE]
            for flight in late:
                flight.position = _LATE
            return late


class Landing:
    """A callback that stores an outcome. A thread can wait for it or poll it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._outcome: FetchResult | None = None

    def __call__(self, outcome: FetchResult) -> None:
        self._outcome = outcome
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> FetchResult | None:
        """Return the outcome, or None on timeout."""
        self._event.wait(timeout_s)
        return self._outcome
