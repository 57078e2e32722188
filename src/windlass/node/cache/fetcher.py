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
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from windlass.node.cache.config import PARTITION, NodeConfig
from windlass.node.cache.flight import Counts, Done, FetchResult, Flight, Landing
from windlass.node.cache.keys import (
    CHUNK,
    DIRECTORY,
    BadKeyError,
    chunk_index,
    digest,
    parse_key,
    runs,
    sibling_key,
    stripe_of,
)
from windlass.node.cache.limits import NodeHealth, TokenBucket, fallback_jitter_s
from windlass.node.cache.neighbours import Neighbours
from windlass.node.cache.source import Source
from windlass.node.cache.stages import STAGES
from windlass.node.cache.store import Store
from windlass.node.wire import wire
from windlass.node.wire.links import Links
from windlass.node.wire.timers import Pool, Timers
from windlass.node.wire.tree import STANDBYS, owner_route, owners, position_of, tree_route

log = logging.getLogger("windlass.cache")

# Errors that say something about the file and not about the node that reports them: asking elsewhere changes nothing.
_FINAL = frozenset({errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EINVAL})


_RUN_BYTES = 1 << 20
_MAX_SWEPT_BYTES = 512 << 20
_READERS_IF_SLOW = 32
_LATE = 1 << 30  # a position behind every route
_SHORT_S = 0.002  # a read of the shared file system that is not worth waking another thread for


class _FlightReply:
    """Frames of one GET of one flight. A reply that comes after the flight moved on is still used: bytes are bytes."""

    def __init__(self, fetcher: Fetcher, flight: Flight, node: int) -> None:
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


class Fetcher:
    def __init__(
        self, config: NodeConfig, source: Source, store: Store, links: Links, health: NodeHealth, timers: Timers
    ) -> None:
        self._config = config
        self._source = source
        self._store = store
        self._links = links
        self._health = health
        self._timers = timers
        self._lock = threading.Lock()
        self._fetcher: dict[bytes, Flight] = {}
        self._bucket = TokenBucket(config.fallback_rate, config.fallback_rate)
        self._random = random.Random(os.urandom(8))
        self._readers = Pool(config.source_threads, "source")
        self._openers = Pool(8, "opener")
        # More threads than that gain nothing where reads are quick: they wait for the interpreter's lock.
        self._beside = Pool(2, "beside")
        self._neighbours = Neighbours(config.chunk_bytes, min(_MAX_SWEPT_BYTES, config.budget_bytes // 4))
        self.on_slow: list[Callable[[], None]] = [lambda: self._readers.allow(_READERS_IF_SLOW)]
        source.on_slow = self._slow
        self._last_read_s = _SHORT_S
        self.counts = Counts()
        self.warned: set[str] = set()
        self._tree_routes = tuple(
            tree_route(config.node, stripe, config.stripes, config.nodes, config.children_each)
            for stripe in range(config.stripes)
        )
        timers.after(1.0, self._sweep)
        self.coming: Callable[[bytes], bool] = lambda key: False
        self.were_read: Callable[[Sequence[tuple[bytes, bytes | memoryview]]], None] = lambda objects: None

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
            flight = Flight(key, self.route(key), time.monotonic() + self._config.give_up_s)
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
        self._beside.close()
        self._openers.close()

    @property
    def is_slow(self) -> bool:
        """Whether reading the shared file system is mostly waiting, so that many reads should be under way."""
        return self._source.is_slow

    def _slow(self) -> None:
        for act in self.on_slow:
            act()

    # One step further

    def move_on(self, flight: Flight, generation: int) -> None:
        if flight.generation == generation and not flight.done:
            self.counts.failovers += 1
            self._advance(flight)

    def _advance(self, flight: Flight) -> None:
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

    def _next_node(self, flight: Flight) -> int | None:
        if time.monotonic() > flight.deadline:
            return None
        while flight.position < len(flight.route):
            node = flight.route[flight.position]
            flight.position += 1
            if self._health.usable(node):
                return node
        return None

    def _open_and_ask(self, flight: Flight, node: int) -> None:
        link = self._links.open(node)
        if link is None or not link.ask(wire.GET, flight.key, _FlightReply(self, flight, node)):
            self.counts.failovers += 1
            self._advance(flight)

    def _stop_waiting_for_stream(self, flight: Flight, rounds: int) -> None:
        if flight.done:
            return
        if rounds and self.coming(flight.key):
            self._timers.after(0.25, lambda: self._stop_waiting_for_stream(flight, rounds - 1))
        else:
            self._advance(flight)

    def _go_to_source(self, flight: Flight) -> None:
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

    def _submit(self, pool: Pool, job: Callable[[], None], flight: Flight) -> None:
        try:
            pool.submit(lambda: self._guarded(job, flight))
        except RuntimeError:  # shutting down
            self.finish(flight, FetchResult(error=OSError(errno.ESHUTDOWN, "the cache is stopping")))

    def _guarded(self, job: Callable[[], None], flight: Flight) -> None:
        """A bug in one flight must not leave its readers waiting for ever."""
        try:
            job()
        except Exception as error:
            log.exception("flight failed")
            self.finish(flight, FetchResult(error=OSError(errno.EIO, repr(error))))

    def _read_source(self, flight: Flight) -> None:
        if flight.done:
            return
        STAGES.add("queue for a reader", flight.began)
        self.read_run([flight])
        if flight.key in self._store and flight.key[0] == CHUNK and not flight.route and self._config.sparse:
            self._read_neighbours(flight.key)

    # Several at once

    def claim(self, keys: Iterable[bytes]) -> list[Flight]:
        """Flights for those objects that this node is the reader of, does not have, and nobody fetches yet. Whoever
        claims them ends them, by `read_run`."""
        claimed = []
        for key in keys:
            if key in self._store or self.route(key):
                continue
            flight = Flight(key, (), 0.0)
            with self._lock:
                if key in self._fetcher:
                    continue
                self._fetcher[key] = flight
            if key in self._store:  # it arrived between the look and the flight
                self.finish(flight, FetchResult(digest=self._store.digest_of(key) or b""))
            else:
                claimed.append(flight)
        return claimed

    def submit_run(self, run: Sequence[Flight]) -> None:
        """`read_run` on a thread that reads the shared file system."""
        self._submit_run(self._readers, run)

    def _submit_run(self, pool: Pool, run: Sequence[Flight]) -> None:
        try:
            pool.submit(lambda: self.read_run(run))
        except RuntimeError:
            self._fail(run, OSError(errno.ESHUTDOWN, "the cache is stopping"))

    def read_run(self, run: Sequence[Flight]) -> None:
        """Reads neighbouring chunks of one file at once, or one folder, and ends their flights, whatever happens."""
        try:
            self._read_run(run)
        except BadKeyError as error:
            self._fail(run, OSError(errno.EINVAL, str(error)))
        except OSError as error:
            self._fail(run, error)
        except Exception as error:
            log.exception("flight failed")
            self._fail(run, OSError(errno.EIO, repr(error)))

    def _fail(self, run: Sequence[Flight], error: OSError) -> None:
        for flight in run:
            self.finish(flight, FetchResult(error=error))

    def _read_neighbours(self, key: bytes) -> None:
        """What lies beside a chunk that somebody waited for: after it, and on other threads than what is asked for."""
        index = chunk_index(key)
        beside = [sibling_key(key, number) for number in self._neighbours.of(key) if number != index]
        claimed = {flight.key: flight for flight in self.claim(beside)}
        found = runs(list(claimed), max(1, _RUN_BYTES // self._config.chunk_bytes))
        for run in sorted(found, key=lambda run: abs(chunk_index(run[0]) - index)):  # the nearest first
            self._submit_run(self._beside, [claimed[each] for each in run])

    def _read_run(self, run: Sequence[Flight]) -> None:
        began = perf_counter()
        key = run[0].key
        data = self._source.read_run(key, len(run)) if key[0] == CHUNK else self._source.read(key)
        now = STAGES.add("read folder" if key[0] == DIRECTORY else "read chunks", began)
        self._last_read_s = now - began
        step = self._config.chunk_bytes
        parts = [data[place * step : (place + 1) * step] for place in range(len(run))] if len(run) > 1 else [data]
        self._land_run(run, parts, data)

    def _land_run(self, run: Sequence[Flight], parts: Sequence[bytes | memoryview], whole: bytes | memoryview) -> None:
        """Objects that this node read from the shared file system; `whole` is all of `parts`."""
        began = perf_counter()
        objects = [(flight.key, digest(flight.key, part), len(part)) for flight, part in zip(run, parts)]
        STAGES.add("digest", began)
        for _, _, size in objects:
            self.counts.add("shared", size)
        self.landed_run(objects, whole)
        own = [(flight.key, part) for flight, part in zip(run, parts) if not flight.route]
        if own:
            self.were_read(own)

    # Arrivals

    def received(self, flight: Flight, node: int, body: memoryview, generation: int) -> None:
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
        self.landed_run([(key, stated, len(data))], data)

    def landed_run(self, objects: Sequence[tuple[bytes, bytes, int]], data: bytes | memoryview) -> None:
        """`landed` for objects (key, digest, size) whose bytes follow each other in `data`."""
        began = perf_counter()
        key, stated, _ = objects[0]
        others = self.is_anothers(key)
        if len(objects) == 1:
            kept = self._store.put(key, stated, data, evict_first=others)
        else:
            kept = self._store.put_run(objects, data, evict_first=others)
        began = STAGES.add("store", began)
        offset = 0
        for key, stated, size in objects:
            flight = self._fetcher.get(key)
            if flight is not None:
                in_hand = None if kept and not self._store.evicted else bytes(data[offset : offset + size])
                self.finish(flight, FetchResult(digest=stated, data=in_hand))
            offset += size
        STAGES.add("tell who waits", began)

    def finish(self, flight: Flight, outcome: FetchResult) -> None:
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

    def landed_from_pack(self, objects: Sequence[tuple[bytes, bytes, int]], data: memoryview) -> None:
        """Checked objects (key, digest, size) that were read from the pack of the trace."""
        self._source.count_pack(len(data))
        for _, _, size in objects:
            self.counts.add("shared", size)
        self.landed_run(objects, data)

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
