"""Store verified bytes of objects from any origin and notify the waiting requests."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from time import perf_counter

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.flight import Counts, FetchResult, Flight, FlightTable
from windlass.node.cache.keys import parse_key
from windlass.node.cache.limits import NodeHealth
from windlass.node.cache.routes import Routes
from windlass.node.cache.stages import STAGES
from windlass.node.cache.store import Store

log = logging.getLogger("windlass.cache")
NamedObject = tuple[bytes, bytes, int]
"""Key, digest and size."""


class Arrivals:
    """The flights of a node, their results, and byte counts per origin. Thread-safe."""

    def __init__(self, config: NodeConfig, store: Store, health: NodeHealth) -> None:
        self.store = store
        self.health = health
        self.routes = Routes(config)
        self.flights = FlightTable()
        self.counts = Counts()
        self.warned: set[str] = set()

    def landed(self, key: bytes, stated: bytes, data: bytes | memoryview) -> None:
        """Store verified bytes and notify the waiting requests."""
        self.landed_run([(key, stated, len(data))], data)

    def landed_run(self, objects: Sequence[NamedObject], data: bytes | memoryview) -> None:
        """Like `landed`, for objects whose bytes are contiguous in `data`."""
        began = perf_counter()
        key, stated, _ = objects[0]
        others = self.routes.is_anothers(key)
        if len(objects) == 1:
            kept = self.store.put(key, stated, data, evict_first=others)
        else:
            kept = self.store.put_run(objects, data, evict_first=others)
        began = STAGES.add("store", began)
        offset = 0
        for (_, stated, size), flight in zip(objects, self.flights.find(key for key, _, _ in objects)):
            if flight is not None:
                in_hand = None if kept and not self.store.evicted else bytes(data[offset : offset + size])
                self.finish(flight, FetchResult(digest=stated, data=in_hand))
            offset += size
        STAGES.add("tell who waits", began)

    def read_here(self, objects: Sequence[NamedObject], data: bytes | memoryview) -> None:
        """Like `landed_run`, for objects that this node read from the shared file system."""
        for _, _, size in objects:
            self.counts.add("shared", size)
        self.landed_run(objects, data)

    def pushed(self, node: int, objects: Sequence[NamedObject], data: bytes | memoryview) -> None:
        """Like `landed_run`, for objects that a stream delivered."""
        for key, _, size in objects:
            self.counts.add(self.routes.pushed_from(node, key), size)
        self.landed_run(objects, data)

    def finish(self, flight: Flight, outcome: FetchResult) -> None:
        """End a flight once and notify the waiting requests."""
        waiters = self.flights.end(flight)
        if waiters is None:
            return
        if outcome.error is not None:
            self._note_error(flight.key, outcome.error)
        for done in waiters:
            done(outcome)

    def finish_held(self, flight: Flight) -> bool:
        """End a flight whose object reached the store in another way. Return False if the store does not have it."""
        held = self.store.digest_of(flight.key)
        if held is not None:
            self.finish(flight, FetchResult(digest=held))
        return held is not None

    def wrong_bytes(self, node: int) -> None:
        self.counts.corrupt += 1
        self.health.sent_wrong_bytes(node)
        self.warn_once("corrupt-%d" % node, "node %d sent wrong bytes; it is left out from now on" % node)

    def node_failed(self, node: int, reason: str) -> None:
        if reason in ("closed", "idle"):
            return
        self.health.failed(node)
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
