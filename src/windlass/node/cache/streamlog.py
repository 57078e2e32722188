"""The objects that a stream has delivered so far, in order: first a trace's plan, then current reads.

Every log of a stripe is a prefix of the log of its reader, so a position has the same meaning on every node.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from windlass.node.cache.keys import HEAD_BYTES
from windlass.node.wire.proof import ProtocolError


class StreamKey(NamedTuple):
    """A key without the version, which is known only when the object is read."""

    kind: int
    number: bytes
    path: bytes


def stream_key(key: bytes) -> StreamKey:
    return StreamKey(key[0], key[1:5], key[HEAD_BYTES:])


class StreamLog:
    """A log that grows until it is closed. None marks an object of the plan that was skipped."""

    def __init__(self) -> None:
        self.items: list[bytes | None] = []
        self.plan: list[StreamKey] | None = None
        self.closed = False
        self._moved = time.monotonic()
        self._places: dict[StreamKey, int] = {}
        self._later: list[bytes] = []
        self._changed = threading.Condition()

    @property
    def plan_over(self) -> bool:
        """Whether all places of the plan were delivered or skipped."""
        return self.plan is not None and len(self.items) >= len(self.plan)

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._moved

    def start(self, plan: list[StreamKey]) -> None:
        with self._changed:
            if self.plan is None:
                self.plan = plan
                self._places = {place: position for position, place in enumerate(plan)}
                self._step()

    def add(self, *keys: bytes | None) -> None:
        with self._changed:
            self.items += keys
            self._step()

    def offer(self, *keys: bytes) -> None:
        """Add objects outside the plan that all nodes will need. They follow when the plan is complete."""
        with self._changed:
            if not self.closed:
                self._later += [key for key in keys if stream_key(key) not in self._places]
                self._step()

    def give_up_plan(self) -> None:
        """Give up the remaining part of the plan."""
        with self._changed:
            if self.plan is None:
                self.plan = []
            self.items += [None] * (len(self.plan) - len(self.items))
            self._step()

    def close(self) -> None:
        self.give_up_plan()
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def awaits(self, key: bytes) -> bool:
        """Whether the object is announced, has not arrived, and the stream is moving."""
        if not self._places or self.plan_over or self.idle_s > 1.0:
            return False
        position = self._places.get(stream_key(key))
        return position is not None and position >= len(self.items)

    def wait_beyond(self, position: int, timeout_s: float) -> None:
        """Wait until there is an item at `position` or the log is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or len(self.items) > position, timeout_s)

    def wait_plan(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.plan is not None, timeout_s)

    def _step(self) -> None:
        if self._later and self.plan_over:
            self.items += self._later
            self._later = []
        self._moved = time.monotonic()
        self._changed.notify_all()


def dump_plan(plan: list[StreamKey]) -> bytes:
    return b"\0".join(b"%d %s %s" % (kind, index.hex().encode(), path) for kind, index, path in plan)


def parse_plan(data: bytes) -> list[StreamKey]:
    try:
        plan = []
        for line in data.split(b"\0") if data else ():
            kind, index, path = line.split(b" ", 2)
            plan.append(StreamKey(int(kind), bytes.fromhex(index.decode()), path))
        return plan
    except (ValueError, UnicodeDecodeError) as error:
        raise ProtocolError("not a plan: %s" % error) from error
