"""The push: what a trace names flows down the tree in order, in one stream per child, without a question per object.

Each node keeps a log of what came, in order. A child subscribes once and receives everything from a position on; if its
parent dies it subscribes to the next ancestor from where it stands. A stream is an offer: what it skips, or loses, the
node gets on demand like anything else.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator

from . import wire
from .config import NodeConfig
from .flights import Flights, Outcome
from .keys import CHUNK, DIRECTORY, HEAD_BYTES, NO_PIN, chunk_key, digest, directory_key, stripe_of
from .limits import Health
from .links import Links
from .listing import Listing, attr_pin
from .server import Inbound
from .store import Store
from .trace import BadTraceError, Touch, Trace, read_trace
from .tree import tree_route

log = logging.getLogger("windlass.cache")
_AHEAD = 32


def place_of(key: bytes) -> tuple[int, bytes, bytes]:
    """Kind, index and path: a key without the version, which is only known when the object is read."""
    return key[0], key[1:5], key[HEAD_BYTES:]


class StreamLog:
    """What one stripe's stream has brought so far, place by place of its plan; None where an object was skipped."""

    def __init__(self) -> None:
        self.items: list[bytes | None] = []
        self.plan: list[tuple[int, bytes, bytes]] | None = None
        self.ended = False
        self.moved = time.monotonic()
        self._places: dict[tuple[int, bytes, bytes], int] = {}
        self._changed = threading.Condition()

    def start(self, plan: list[tuple[int, bytes, bytes]]) -> None:
        with self._changed:
            if self.plan is None:
                self.plan = plan
                self._places = {place: position for position, place in enumerate(plan)}
                self.moved = time.monotonic()
                self._changed.notify_all()

    def add(self, key: bytes | None) -> None:
        with self._changed:
            self.items.append(key)
            self.moved = time.monotonic()
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self.ended = True
            if self.plan is None:
                self.plan = []
            self._places = {}
            self._changed.notify_all()

    def awaits(self, key: bytes) -> bool:
        """The object is announced, has not come, and the stream is moving."""
        if not self._places or time.monotonic() - self.moved > 1.0:
            return False
        position = self._places.get(place_of(key))
        return position is not None and position >= len(self.items)

    def wait_beyond(self, position: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.ended or len(self.items) > position, timeout_s)

    def wait_plan(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.plan is not None, timeout_s)


class Streams:
    """All stripes of one node: drives the ones it is the reader of, follows the others, feeds its children."""

    def __init__(self, config: NodeConfig, flights: Flights, store: Store, links: Links, health: Health) -> None:
        self._config = config
        self._flights = flights
        self._store = store
        self._links = links
        self._health = health
        self._closed = threading.Event()
        self.logs = [StreamLog() for _ in range(config.stripes)]
        self.pushed_bytes = 0
        flights.coming = self.coming

    def start(self) -> None:
        for stripe in range(self._config.stripes):
            config = self._config
            route = tree_route(config.node, stripe, config.stripes, config.nodes, config.fanout)
            work = _drive if not route else _follow
            threading.Thread(target=work, args=(self, stripe, route), name="stream-%d" % stripe, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        for each in self.logs:
            each.end()

    def coming(self, key: bytes) -> bool:
        return self.logs[stripe_of(key, self._config.stripes)].awaits(key)

    def status(self) -> dict[str, object]:
        return {
            "ended": all(each.ended for each in self.logs),
            "objects": sum(len(each.items) for each in self.logs),
            "planned": sum(len(each.plan or ()) for each in self.logs),
            "bytes": self.pushed_bytes,
        }

    def feed(self, inbound: Inbound, request: int, stripe: int, position: int) -> None:
        """Sends a child everything from `position` on; returns when the stream ends or the child leaves. Blocks."""
        if not 0 <= stripe < len(self.logs):
            inbound.send(wire.ERROR, request, wire.error_body(22, "no stripe %d" % stripe))
            return
        source = self.logs[stripe]
        while source.plan is None and not inbound.closed:
            source.wait_plan(1.0)
        if inbound.local:
            self._tell_local(inbound, request, source, position)
            return
        inbound.send(wire.PLAN, request, dump_plan(source.plan or []), last=False)
        while not inbound.closed:
            if position < len(source.items):
                self._feed_one(inbound, request, source.items[position])
                position += 1
            elif source.ended:
                inbound.send(wire.END, request)
                return
            else:
                source.wait_beyond(position, 1.0)

    def _tell_local(self, inbound: Inbound, request: int, source: StreamLog, position: int) -> None:
        """The mount process reads the store itself: it only needs to know what is there."""
        while not inbound.closed:
            news = source.items[position : position + 64]
            position += len(news)
            if news:
                inbound.send(wire.HAVE, request, wire.join_keys(key for key in news if key is not None), last=False)
            elif source.ended:
                inbound.send(wire.END, request)
                return
            else:
                source.wait_beyond(position, 1.0)

    def _feed_one(self, inbound: Inbound, request: int, key: bytes | None) -> None:
        stated = self._store.digest_of(key) if key is not None else None
        fd = self._store.open(key) if key is not None and stated is not None else None
        if key is None or stated is None or fd is None:
            inbound.send(wire.SKIP, request, last=False)
            return
        try:
            inbound.send_file(request, wire.object_prefix(key, stated), fd, os.fstat(fd).st_size, last=False)
        finally:
            os.close(fd)

    # The reader of a stripe

    def drive(self, stripe: int) -> None:
        mine = self.logs[stripe]
        trace = self._read_trace()
        try:
            if trace is None:
                return
            stripes = self._config.stripes
            wanted = [w for w in self._wanted(trace) if stripe_of(_unpinned_key(*w), stripes) == stripe]
            mine.start([_place(touch, index) for touch, index in wanted])
            self._fill(mine, wanted)
        finally:
            mine.end()

    def _read_trace(self) -> Trace | None:
        if not self._config.trace_in:
            return None
        try:
            return read_trace(self._config.trace_in)
        except (OSError, BadTraceError) as error:
            log.warning("no trace is pushed: %s", error)
            return None

    def _wanted(self, trace: Trace) -> Iterator[tuple[Touch, int]]:
        for touch in trace.touches:
            if touch.is_directory:
                yield touch, 0
                continue
            first = touch.offset // self._config.chunk_bytes
            last = (touch.offset + max(1, touch.length) - 1) // self._config.chunk_bytes
            for index in range(first, last + 1):
                yield touch, index

    def _fill(self, mine: StreamLog, wanted: list[tuple[Touch, int]]) -> None:
        """Reads ahead with several requests under way, and logs in the order of the trace."""
        under_way: deque[tuple[bytes | None, _Landing]] = deque()
        for touch, index in wanted:
            if self._closed.is_set():
                return
            key = self._key_of(touch, index)
            landing = _Landing()
            if key is None:
                landing(Outcome(error=FileNotFoundError()))
            else:
                self._flights.obtain(key, landing)
            under_way.append((key, landing))
            while len(under_way) > _AHEAD or (under_way and under_way[0][1].is_set()):
                self._log_first(mine, under_way)
        while under_way and not self._closed.is_set():
            self._log_first(mine, under_way)

    def _log_first(self, mine: StreamLog, under_way: deque) -> None:  # type: ignore[type-arg]
        key, landing = under_way.popleft()
        outcome = landing.wait(self._config.give_up_s)
        mine.add(None if outcome is None or outcome.error is not None or key not in self._store else key)

    def _key_of(self, touch: Touch, index: int) -> bytes | None:
        """The key of today's version, from today's listing; None for what is no longer there."""
        if touch.is_directory:
            return directory_key(touch.path)
        parent, _, name = touch.path.rpartition(b"/")
        listing = self._listing(parent or b"/")
        place = listing.place(name) if listing is not None else None
        if listing is None or place is None or not stat.S_ISREG(listing.mode_at(place)):
            return None
        pin = attr_pin(listing.attr_at(place))
        if index * self._config.chunk_bytes >= pin.size:
            return None
        return chunk_key(touch.path, pin, index)

    _last_listing: tuple[bytes, Listing | None] = (b"", None)

    def _listing(self, path: bytes) -> Listing | None:
        if self._last_listing[0] == path:
            return self._last_listing[1]
        key = directory_key(path)
        outcome = self._flights.wait(key, self._config.give_up_s)
        listing = None
        if outcome.error is None:
            data = outcome.data
            if data is None:
                fd = self._store.open(key)
                if fd is not None:
                    with os.fdopen(fd, "rb") as file:
                        data = file.read()
            listing = Listing(data) if data is not None else None
        self._last_listing = (path, listing)
        return listing

    # Everybody else

    def follow(self, stripe: int, route: tuple[int, ...]) -> None:
        mine = self.logs[stripe]
        deadline = time.monotonic() + self._config.start_grace_s + self._config.give_up_s
        while not mine.ended and not self._closed.is_set() and time.monotonic() < deadline:
            for node in route:
                link = self._links.open(node) if self._health.usable(node) else None
                if link is None:
                    continue
                reply = _StreamReply(self, mine, node)
                if link.ask(wire.STREAM, json.dumps([stripe, len(mine.items)]).encode(), reply):
                    while not reply.over.wait(1.0) and not self._closed.is_set():
                        pass
                if mine.ended or self._closed.is_set():
                    return
                deadline = max(deadline, mine.moved + self._config.give_up_s)
            self._closed.wait(0.5)
        mine.end()

    def arrived(self, mine: StreamLog, node: int, body: memoryview) -> bool:
        """A pushed object. False where its bytes are wrong: the stream then comes from someone else."""
        key, stated, data = wire.parse_object(body)
        if key not in self._store:
            if digest(key, data) != stated:
                self._flights.wrong_bytes(node, key)
                return False
            self._flights.count_from(node, key, len(data))
            self.pushed_bytes += len(data)
            self._flights.landed(key, stated, data)
        mine.add(key)
        return True


class _Landing:
    """A flight's outcome that the driver comes back for."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._outcome: Outcome | None = None

    def __call__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> Outcome | None:
        self._event.wait(timeout_s)
        return self._outcome


class _StreamReply:
    def __init__(self, streams: Streams, mine: StreamLog, node: int) -> None:
        self._streams = streams
        self._mine = mine
        self._node = node
        self.over = threading.Event()

    def frame(self, kind: int, body: memoryview) -> bool:
        if kind == wire.PLAN:
            self._mine.start(parse_plan(bytes(body)))
        elif kind == wire.OBJECT:
            if not self._streams.arrived(self._mine, self._node, body):
                self.over.set()
                return True
        elif kind == wire.SKIP:
            self._mine.add(None)
        else:
            if kind == wire.END:
                self._mine.end()
            self.over.set()
            return True
        return False

    def lost(self, reason: str) -> None:
        self.over.set()


def _drive(streams: Streams, stripe: int, route: tuple[int, ...]) -> None:
    streams.drive(stripe)


def _follow(streams: Streams, stripe: int, route: tuple[int, ...]) -> None:
    streams.follow(stripe, route)


def _place(touch: Touch, index: int) -> tuple[int, bytes, bytes]:
    kind = DIRECTORY if touch.is_directory else CHUNK
    return kind, index.to_bytes(4, "little"), touch.path


def _unpinned_key(touch: Touch, index: int) -> bytes:
    return directory_key(touch.path) if touch.is_directory else chunk_key(touch.path, NO_PIN, index)


def dump_plan(plan: list[tuple[int, bytes, bytes]]) -> bytes:
    return b"\0".join(b"%d %s %s" % (kind, index.hex().encode(), path) for kind, index, path in plan)


def parse_plan(data: bytes) -> list[tuple[int, bytes, bytes]]:
    try:
        plan = []
        for line in data.split(b"\0") if data else ():
            kind, index, path = line.split(b" ", 2)
            plan.append((int(kind), bytes.fromhex(index.decode()), path))
        return plan
    except (ValueError, UnicodeDecodeError) as error:
        raise wire.ProtocolError("not a plan: %s" % error) from error
