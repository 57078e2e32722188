"""Getting an object to this node: once at a time per object, from whoever has it, whatever has died.

Order: the store; the nodes of the route (parent, further ancestors, standby readers, or the owners); the shared file
system itself. A node whose route is empty is the object's reader and goes straight there; everybody else only after a
jittered wait and at a limited rate.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from . import wire
from .config import PARTITION, NodeConfig
from .keys import CHUNK, DIRECTORY, BadKeyError, digest, parse_key, stripe_of
from .limits import Health, TokenBucket, fallback_jitter_s
from .links import Links
from .pool import Pool
from .source import Source
from .stages import STAGES
from .store import Store
from .timers import Timers
from .tree import STANDBYS, owner_route, owners, position_of, tree_route

log = logging.getLogger("windlass.cache")

# Errors that say something about the file and not about the node that reports them: asking elsewhere changes nothing.
_FINAL = frozenset({errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EINVAL})


_LATE = 1 << 30  # a position behind every route
_SHORT_S = 0.002  # a read of the shared file system that is not worth waking another thread for


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


class _Flight:
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


class _FlightReply:
    """Frames of one GET of one flight. A reply that comes after the flight moved on is still used: bytes are bytes."""

    def __init__(self, fetcher: Fetcher, flight: _Flight, node: int) -> None:
        self._fetcher = fetcher
        self._flight = flight
        self._node = node
        self._generation = flight.generation

    def frame(self, kind: int, body: memoryview) -> bool:
        if kind == wire.OBJECT:
            self._fetcher.received(self._flight, self._node, body, self._generation)
        elif kind == wire.ERROR:
            error = wire.parse_error(bytes(body))
            if error.errno in _FINAL:
                self._fetcher.finish(self._flight, FetchResult(error=error))
            else:
                self._fetcher.move_on(self._flight, self._generation)
        return True

    def lost(self, reason: str) -> None:
        self._fetcher.node_failed(self._node, reason)
        self._fetcher.move_on(self._flight, self._generation)


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


class Fetcher:
    def __init__(
        self, config: NodeConfig, source: Source, store: Store, links: Links, health: Health, timers: Timers
    ) -> None:
        self._config = config
        self._source = source
        self._store = store
        self._links = links
        self._health = health
        self._timers = timers
        self._lock = threading.Lock()
        self._fetcher: dict[bytes, _Flight] = {}
        self._bucket = TokenBucket(config.fallback_rate, config.fallback_rate)
        self._random = random.Random(os.urandom(8))
        self._readers = Pool(config.source_threads, "source")
        self._openers = Pool(8, "opener")
        self._last_read_s = _SHORT_S
        self.counts = Counts()
        self.warned: set[str] = set()
        self._tree_routes = tuple(
            tree_route(config.node, stripe, config.stripes, config.nodes, config.fanout)
            for stripe in range(config.stripes)
        )
        timers.after(1.0, self._sweep)
        self.coming: Callable[[bytes], bool] = lambda key: False
        self.was_read: Callable[[bytes, bytes | memoryview], None] = lambda key, data: None

    def obtain(self, key: bytes, done: Done, *, idle: bool = False) -> None:
        """Calls `done` once, now or later, from any thread. Raises `BadKeyError` for a key that names nothing.

        `idle`: the calling thread has nothing else to do and may read the shared file system itself."""
        held = self._store.digest_of(key)
        if held is not None:
            self.counts.calls["local"] += 1
            done(FetchResult(digest=held))
            return
        with self._lock:
            flight = self._fetcher.get(key)
            if flight is not None:
                flight.waiters.append(done)
                return
            flight = _Flight(key, self.route(key), time.monotonic() + self._config.give_up_s)
            flight.waiters.append(done)
            self._fetcher[key] = flight
        if key in self._store:  # it arrived between the look and the flight
            self.finish(flight, FetchResult(digest=self._store.digest_of(key) or b""))
        elif idle and not flight.route and self._last_read_s < _SHORT_S:
            self._guarded(lambda: self._read_source(flight), flight)
        elif flight.route and self.coming(key):
            self._timers.after(0.25, lambda: self._stop_waiting_for_stream(flight, 3))
        else:
            self._advance(flight)

    def wait(self, key: bytes, timeout_s: float) -> FetchResult:
        """`obtain` for code that has a thread of its own to block."""
        landing = Landing()
        self.obtain(key, landing)
        late = FetchResult(error=OSError(errno.ETIMEDOUT, "not there after %.0f s" % timeout_s))
        return landing.wait(timeout_s) or late

    def wait_if_under_way(self, key: bytes, timeout_s: float) -> None:
        """Returns when an object that is being fetched has come, or was not being fetched at all."""
        landing = Landing()
        with self._lock:
            flight = self._fetcher.get(key)
            if flight is None:
                return
            flight.waiters.append(landing)
        landing.wait(timeout_s)

    def route(self, key: bytes) -> tuple[int, ...]:
        """Nodes to ask for `key`, best first."""
        parse_key(key)
        config = self._config
        if config.nodes == 1:
            return ()
        if config.placement == PARTITION and key[0] == CHUNK:
            return owner_route(key, config.node, config.nodes)
        return self._tree_routes[stripe_of(key, config.stripes)]

    def is_anothers(self, key: bytes) -> bool:
        """An object that another node keeps for all: the first to leave when room is needed."""
        config = self._config
        if config.placement != PARTITION or key[0] != CHUNK:
            return False
        return config.node != owners(key, config.nodes)[0]

    def close(self) -> None:
        self._readers.close()
        self._openers.close()

    # One step further

    def move_on(self, flight: _Flight, generation: int) -> None:
        if flight.generation == generation and not flight.done:
            self.counts.failovers += 1
            self._advance(flight)

    def _advance(self, flight: _Flight) -> None:
        while not flight.done:
            with self._lock:
                flight.generation += 1
                node = self._next_node(flight)
            if node is None:
                self._go_to_source(flight)
                return
            link = self._links.existing(node)
            if link is None:
                self._submit(self._openers, lambda node=node: self._open_and_ask(flight, node), flight)  # type: ignore[misc]
                return
            if link.ask(wire.GET, flight.key, _FlightReply(self, flight, node)):
                return

    def _sweep(self) -> None:
        """Fetcher that others keep waiting beyond the deadline go to the shared file system."""
        now = time.monotonic()
        with self._lock:
            late = [f for f in self._fetcher.values() if f.route and now > f.deadline and f.position < _LATE]
            for flight in late:
                flight.position = _LATE
        for flight in late:
            self._go_to_source(flight)
        self._timers.after(1.0, self._sweep)

    def _next_node(self, flight: _Flight) -> int | None:
        if time.monotonic() > flight.deadline:
            return None
        while flight.position < len(flight.route):
            node = flight.route[flight.position]
            flight.position += 1
            if self._health.usable(node):
                return node
        return None

    def _open_and_ask(self, flight: _Flight, node: int) -> None:
        link = self._links.open(node)
        if link is None or not link.ask(wire.GET, flight.key, _FlightReply(self, flight, node)):
            self.counts.failovers += 1
            self._advance(flight)

    def _stop_waiting_for_stream(self, flight: _Flight, rounds: int) -> None:
        if flight.done:
            return
        if rounds and self.coming(flight.key):
            self._timers.after(0.25, lambda: self._stop_waiting_for_stream(flight, rounds - 1))
        else:
            self._advance(flight)

    def _go_to_source(self, flight: _Flight) -> None:
        if not flight.route:
            self._submit(self._readers, lambda: self._read_source(flight), flight)
            return
        self.counts.fallbacks += 1
        self.warn_once("fallback", "other nodes do not answer; reading the shared file system from this node as well")
        config = self._config
        delay = self._bucket.take()
        stripe = stripe_of(flight.key, config.stripes)
        if position_of(config.node, stripe, config.stripes, config.nodes) > STANDBYS:
            delay += fallback_jitter_s(config.nodes, self._random)
        self._timers.after(delay, lambda: self._submit(self._readers, lambda: self._read_source(flight), flight))

    def _submit(self, pool: Pool, job: Callable[[], None], flight: _Flight) -> None:
        try:
            pool.submit(lambda: self._guarded(job, flight))
        except RuntimeError:  # shutting down
            self.finish(flight, FetchResult(error=OSError(errno.ESHUTDOWN, "the cache is stopping")))

    def _guarded(self, job: Callable[[], None], flight: _Flight) -> None:
        """A bug in one flight must not leave its readers waiting for ever."""
        try:
            job()
        except Exception as error:
            log.exception("flight failed")
            self.finish(flight, FetchResult(error=OSError(errno.EIO, repr(error))))

    def _read_source(self, flight: _Flight) -> None:
        if flight.done:
            return
        began = STAGES.add("queue for a reader", flight.began)
        try:
            data = self._source.read(flight.key)
            now = STAGES.add("read folder" if flight.key[0] == DIRECTORY else "read chunk", began)
            self._last_read_s = now - began
        except BadKeyError as error:
            self.finish(flight, FetchResult(error=OSError(errno.EINVAL, str(error))))
            return
        except OSError as error:
            self.finish(flight, FetchResult(error=error))
            return
        self.counts.add("shared", len(data))
        stated = digest(flight.key, data)
        STAGES.add("digest", now)
        self.landed(flight.key, stated, data)
        if not flight.route:
            self.was_read(flight.key, data)

    # Arrivals

    def received(self, flight: _Flight, node: int, body: memoryview, generation: int) -> None:
        """An OBJECT from another node: used only if it is the right object and its digest is right."""
        began = STAGES.add("ask another node", flight.began)
        key, stated, data = wire.parse_object(body)
        right = key == flight.key and digest(key, data) == stated
        STAGES.add("digest", began)
        if not right:
            self.wrong_bytes(node)
            self.move_on(flight, generation)
            return
        self.counts.add("parent" if flight.route[0] == node else "peer", len(data))
        self._health.answered(node)
        self.landed(key, stated, data)

    def landed(self, key: bytes, stated: bytes, data: bytes | memoryview) -> None:
        """Verified bytes are here, asked for or pushed: keep them and tell who waits."""
        began = perf_counter()
        kept = self._store.put(key, stated, data, evict_first=self.is_anothers(key))
        began = STAGES.add("store", began)
        flight = self._fetcher.get(key)
        if flight is not None:
            in_hand = None if kept and not self._store.evicted else bytes(data)
            self.finish(flight, FetchResult(digest=stated, data=in_hand))
            STAGES.add("tell who waits", began)

    def finish(self, flight: _Flight, outcome: FetchResult) -> None:
        with self._lock:
            if flight.done:
                return
            flight.done = True
            self._fetcher.pop(flight.key, None)
            waiters = flight.waiters
        if outcome.error is not None:
            self._note_error(flight.key, outcome.error)
        for done in waiters:
            done(outcome)

    def count_pushed(self, node: int, key: bytes, size: int) -> None:
        """A stream flows down the tree, so who sends it is the parent unless the parent is gone."""
        route = self._tree_routes[stripe_of(key, self._config.stripes)]
        self.counts.add("parent" if route and route[0] == node else "peer", size)

    def wrong_bytes(self, node: int) -> None:
        self.counts.corrupt += 1
        self._health.sent_wrong_bytes(node)
        self.warn_once("corrupt-%d" % node, "node %d sent wrong bytes; it is left out from now on" % node)

    def node_failed(self, node: int, reason: str) -> None:
        if reason in ("closed", "idle"):
            return
        self._health.failed(node)
        self.warn_once("failed-%d" % node, "node %d: %s" % (node, reason))

    def warn_once(self, topic: str, text: str) -> None:
        if topic not in self.warned:
            self.warned.add(topic)
            log.warning("%s", text)

    def _note_error(self, key: bytes, error: OSError) -> None:
        if error.errno == errno.ESTALE:
            self.counts.changed += 1
            path = os.fsdecode(parse_key(key).path)
            self.warn_once("changed-" + path, "%s changed on the shared file system under the job" % path)
        else:
            self.counts.errors += 1
