"""Store verified bytes of objects from any origin and notify the waiting requests."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from time import perf_counter

from windlass.node.cache.config import PARTITION, NodeConfig
from windlass.node.cache.flight import Counts, FetchResult, Flight, FlightTable
from windlass.node.cache.keys import CHUNK, parse_key, stripe_of
from windlass.node.cache.limits import NodeHealth
from windlass.node.cache.stages import STAGES
from windlass.node.cache.store import Store
from windlass.node.wire.tree import STANDBYS, owner_route, owners, position_of, tree_route


class Routes:
    """The routes of one node. This node reads an object with an empty route from the shared file system."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._trees = tuple(
            tree_route(config.node, stripe, config.stripes, config.nodes, config.children_each)
            for stripe in range(config.stripes)
        )

    def of(self, key: bytes) -> tuple[int, ...]:
        """Return the nodes to ask for `key`, best first. Raises `BadKeyError` for a key that names nothing."""
        parse_key(key)
        config = self._config
        if config.nodes == 1:
            return ()
        if config.placement == PARTITION and key[0] == CHUNK:
            return owner_route(key, config.node, config.nodes)
        return self._tree(key)

    def is_anothers(self, key: bytes) -> bool:
        """Whether another node keeps this object for all nodes.

        Such an object is evicted first when space is needed.
        """
        config = self._config
        if config.placement != PARTITION or key[0] != CHUNK:
            return False
        return config.node != owners(key, config.nodes)[0]

    def pushed_from(self, node: int, key: bytes) -> str:
        """Return the origin of a pushed object. A stream comes from the parent unless the parent is gone."""
        route = self._tree(key)
        return "parent" if route and route[0] == node else "peer"

    def is_standby(self, key: bytes) -> bool:
        """Whether this node is among the first to read the object if its reader is gone."""
        config = self._config
        stripe = stripe_of(key, config.stripes)
        return position_of(config.node, stripe, config.stripes, config.nodes) <= STANDBYS

    def _tree(self, key: bytes) -> tuple[int, ...]:
        return self._trees[stripe_of(key, self._config.stripes)]


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
        self.warn_once("corrupt-%d" % node, "node %d sent wrong bytes; windlass no longer uses it" % node)

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
