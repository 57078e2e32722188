"""Fetch an object to this node. Concurrent requests share one fetch.

Order: the store, then the nodes of the route (parent, further ancestors, standby readers, or the owners), then the
shared file system. A node whose route is empty is the object's reader and reads it at once. All other nodes read only
after a jittered wait and at a limited rate.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Sequence

from windlass.node.cache.arrivals import Arrivals
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.flight import Done, FetchResult, Flight, Landing
from windlass.node.cache.keys import digest, stripe_of
from windlass.node.cache.limits import TokenBucket, fallback_jitter_s
from windlass.node.cache.source_reader import SourceReader
from windlass.node.cache.stages import STAGES
from windlass.node.cache.streamlog import StreamLog
from windlass.node.wire import wire
from windlass.node.wire.links import Links
from windlass.node.wire.timers import Pool, Timers

log = logging.getLogger("windlass.cache")

# Errors of the file and not of the node that reports them. Asking another node gives the same error.
_FINAL = frozenset({errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EINVAL})


class _FlightReply:
    """Frames of one GET of one flight. A reply that arrives after the flight has moved on is still used."""

    def __init__(self, fetcher: Fetcher, flight: Flight, node: int, generation: int) -> None:
        self._fetcher = fetcher
        self._flight = flight
        self._node = node
        self._generation = generation

    def frame(self, kind: int, body: memoryview) -> bool:
        if kind == wire.OBJECT:
            self._fetcher.received(self._flight, self._node, body, self._generation)
        elif kind == wire.ERROR:
            error = wire.parse_error(bytes(body))
            if error.errno in _FINAL:
                self._fetcher.arrivals.finish(self._flight, FetchResult(error=error))
            else:
                self._fetcher.move_on(self._flight, self._generation)
        return True

    def lost(self, reason: str) -> None:
        self._fetcher.arrivals.node_failed(self._node, reason)
        self._fetcher.move_on(self._flight, self._generation)


class Fetcher:
    """Ask nodes in turn, and read the shared file system last.

    `logs`: the objects that the stream of each stripe announces.
    """

    def __init__(
        self, config: NodeConfig, reader: SourceReader, arrivals: Arrivals, links: Links, timers: Timers,
        logs: Sequence[StreamLog],
    ) -> None:  # fmt: skip
        self.reader = reader
        self.arrivals = arrivals
        self._config = config
        self._links = links
        self._timers = timers
        self._logs = logs
        self._bucket = TokenBucket(config.fallback_rate, config.fallback_rate)
        self._random = random.Random(os.urandom(8))
        self._openers = Pool(8, "opener")
        timers.after(1.0, self._sweep)

    def obtain(self, key: bytes, done: Done, *, idle: bool = False) -> None:
        """Call `done` once, now or later, from any thread. Raises `BadKeyError` for a key that names nothing.

        `idle`: the calling thread has no other work and may read the shared file system itself.
        """
        held = self.arrivals.store.digest_of(key)
        if held is not None:
            self.arrivals.counts.calls["local"] += 1
            done(FetchResult(digest=held))
            return
        route = self.arrivals.routes.of(key)
        flight = self.arrivals.flights.join(key, route, time.monotonic() + self._config.give_up_s, done)
        if flight is None or self.arrivals.finish_held(flight):  # it may have arrived between the lookup and the flight
            return
        if idle and not route and self.reader.is_quick:
            self._guarded(lambda: self.reader.read(flight), flight)
        elif route and self._is_announced(key):
            self._timers.after(0.25, lambda: self._stop_waiting_for_stream(flight, 3))
        else:
            self._advance(flight)

    def wait(self, key: bytes, timeout_s: float) -> FetchResult:
        """Like `obtain`, for callers that can block their thread."""
        landing = Landing()
        self.obtain(key, landing)
        late = FetchResult(error=OSError(errno.ETIMEDOUT, "not there after %.0f s" % timeout_s))
        return landing.wait(timeout_s) or late

    def wait_if_under_way(self, key: bytes, timeout_s: float) -> None:
        """Wait for an object that is being fetched. Return at once if it is not being fetched."""
        landing = Landing()
        if self.arrivals.flights.watch(key, landing):
            landing.wait(timeout_s)

    def close(self) -> None:
        self.reader.close()
        self._openers.close()

    def received(self, flight: Flight, node: int, body: memoryview, generation: int) -> None:
        """Accept an OBJECT from another node if its key and its digest are right."""
        began = STAGES.add("ask another node", flight.began)
        key, stated, data = wire.parse_object(body)
        right = key == flight.key and digest(key, data) == stated
        STAGES.add("digest", began)
        if not right:
            self.arrivals.wrong_bytes(node)
            self.move_on(flight, generation)
            return
        self.arrivals.counts.add("parent" if flight.route[0] == node else "peer", len(data))
        self.arrivals.health.answered(node)
        self.arrivals.landed(key, stated, data)

    def move_on(self, flight: Flight, generation: int) -> None:
        """Ask the next node, unless the flight has moved on already."""
        self._advance(flight, generation)

    def _advance(self, flight: Flight, generation: int | None = None) -> None:
        while True:
            turn = self.arrivals.flights.next_turn(flight, self.arrivals.health.usable, generation)
            if turn is None:
                return
            if generation is not None:
                self.arrivals.counts.failovers += 1
            if turn.node is None:
                self._go_to_source(flight)
                return
            generation = turn.generation
            reply = _FlightReply(self, flight, turn.node, generation)
            link = self._links.existing(turn.node)
            if link is None:
                self._open_later(flight, reply, turn.node, generation)
                return
            if link.ask(wire.GET, flight.key, reply):
                return

    def _open_later(self, flight: Flight, reply: _FlightReply, node: int, generation: int) -> None:
        def open_and_ask() -> None:
            link = self._links.open(node)
            if link is None or not link.ask(wire.GET, flight.key, reply):
                self.move_on(flight, generation)

        try:
            self._openers.submit(lambda: self._guarded(open_and_ask, flight))
        except RuntimeError:  # shutting down
            self.arrivals.finish(flight, FetchResult(error=OSError(errno.ESHUTDOWN, "the cache is stopping")))

    def _sweep(self) -> None:
        """Read the shared file system for flights that have waited for other nodes beyond the deadline."""
        for flight in self.arrivals.flights.take_late(time.monotonic()):
            self._go_to_source(flight)
        self._timers.after(1.0, self._sweep)

    def _is_announced(self, key: bytes) -> bool:
        return self._logs[stripe_of(key, self._config.stripes)].awaits(key)

    def _stop_waiting_for_stream(self, flight: Flight, rounds: int) -> None:
        if flight.done:
            return
        if rounds and self._is_announced(flight.key):
            self._timers.after(0.25, lambda: self._stop_waiting_for_stream(flight, rounds - 1))
        else:
            self._advance(flight)

    def _go_to_source(self, flight: Flight) -> None:
        if not flight.route:
            self.reader.submit(flight)
            return
        self.arrivals.counts.fallbacks += 1
        text = "other nodes do not answer; reading the shared file system from this node as well"
        self.arrivals.warn_once("fallback", text)
        delay = self._bucket.take()
        if not self.arrivals.routes.is_standby(flight.key):
            delay += fallback_jitter_s(self._config.nodes, self._random)
        self._timers.after(delay, lambda: self.reader.submit(flight))

    def _guarded(self, job: Callable[[], None], flight: Flight) -> None:
        """Run a job and end the flight on any exception. A bug in one flight must not block its readers forever."""
        try:
            job()
        except Exception as error:
            log.exception("flight failed")
            self.arrivals.finish(flight, FetchResult(error=OSError(errno.EIO, repr(error))))
