"""The push: send the objects of a trace and current reads down the tree, in one stream per child.

Each node keeps a log of the received objects, in order. A child subscribes once and receives everything from a
position. If its parent dies, it subscribes to the next ancestor from its current position. A stream is optional: the
node fetches skipped or lost objects on demand, like all other objects.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from time import perf_counter

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.driver import Driver
from windlass.node.cache.fetcher import Fetcher
from windlass.node.cache.keys import digest
from windlass.node.cache.server import Inbound
from windlass.node.cache.stages import STAGES
from windlass.node.cache.store import HeldObject, Store
from windlass.node.cache.streamlog import StreamLog, dump_plan, parse_plan
from windlass.node.wire import wire
from windlass.node.wire.links import Links
from windlass.node.wire.tree import tree_route

_GATHER_S = 0.002


class Streams:
    """All stripes of one node: drive those that it reads, follow the others, and feed its children."""

    def __init__(self, config: NodeConfig, fetcher: Fetcher, links: Links, logs: Sequence[StreamLog]) -> None:
        self._config = config
        self._fetcher = fetcher
        self._arrivals = fetcher.arrivals
        self._store = fetcher.arrivals.store
        self._links = links
        self._health = fetcher.arrivals.health
        self._closed = threading.Event()
        self.logs = logs
        self._driver: Driver | None = None
        self.pushed_bytes = 0
        self._first_at: dict[int, float] = {}

    def start(self) -> None:
        config = self._config
        for stripe in range(config.stripes):
            route = tree_route(config.node, stripe, config.stripes, config.nodes, config.children_each)
            if route:
                threading.Thread(target=self._follow, args=(stripe, route), name="follow", daemon=True).start()
            else:
                driver = Driver(config, self._fetcher, self._store, stripe, self.logs[stripe])
                self._fetcher.reader.subscribe(driver)  # a node is the reader of one stripe at most
                self._driver = driver
                threading.Thread(target=driver.run, name="drive", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        if self._driver is not None:
            self._driver.close()
        for each in self.logs:
            each.close()

    def looked_into(self, path: bytes) -> None:
        """Handle a program of this node that opens a prefetched directory."""
        if self._driver is not None:
            self._driver.looked_into(path)

    def planned(self) -> list[bytes | None]:
        """Return the received objects of the plans, in order."""
        return [key for each in self.logs for key in each.items[: len(each.plan or ())]]

    def status(self) -> dict[str, object]:
        """Return the status. `ended`: the planned part is complete. More objects may follow when they are read."""
        return {
            "ended": all(each.plan_over for each in self.logs),
            "objects": sum(len(each.items) for each in self.logs),
            "planned": sum(len(each.plan or ()) for each in self.logs),
            "bytes": self.pushed_bytes,
        }

    # Feeding

    def feed(self, inbound: Inbound, request: int, stripe: int, position: int) -> None:
        """Send everything from `position`. Blocks until the stream is closed or the child disconnects."""
        if not 0 <= stripe < len(self.logs) or position < 0:
            inbound.send(wire.ERROR, request, wire.error_body(22, "no stripe %d" % stripe))
            return
        source = self.logs[stripe]
        while source.plan is None and not inbound.closed:
            source.wait_plan(1.0)
        if inbound.local:
            _tell_local(self._store, inbound, request, source, position)
            return
        inbound.send(wire.PLAN, request, dump_plan(source.plan or []), last=False)
        while not inbound.closed:
            if position < len(source.items):
                position += self._feed_some(inbound, request, source.items, position)
            elif source.closed:
                inbound.send(wire.END, request)
                return
            else:
                _wait_and_gather(source, position)

    def _feed_one(self, inbound: Inbound, request: int, key: bytes | None) -> None:
        if key is not None and inbound.has_asked(key):
            inbound.send(wire.SKIP, request, key, last=False)
            return
        if key is not None and key not in self._store:
            self._fetcher.wait_if_under_way(key, 1.0)  # announced by the parent, requested by another child
        held = self._store.hold(key) if key is not None else None
        if key is None or held is None:
            inbound.send(wire.SKIP, request, key or b"", last=False)
            return
        try:
            inbound.send_file(request, wire.object_prefix(key, held.digest), held, last=False)
        finally:
            self._store.release(held)

    def _feed_some(self, inbound: Inbound, request: int, items: list[bytes | None], position: int) -> int:
        """Send what fits in one frame. Return the number of items."""
        began = perf_counter()
        batch: list[tuple[bytes, HeldObject]] = []
        left = wire.BATCH_BYTES
        try:
            for key in items[position : position + wire.BATCH_OBJECTS]:
                held = self._store.hold(key) if key is not None and not inbound.has_asked(key) else None
                if key is None or held is None:
                    break
                batch.append((key, held))
                left -= held.size
                if left < 0:
                    break
            if left < 0 and len(batch) > 1:  # the last one is too much and goes into the next frame
                self._store.release(batch.pop()[1])
            if len(batch) < 2:
                self._feed_one(inbound, request, items[position])
                return 1
            inbound.send_batch(request, batch)
            return len(batch)
        finally:
            for _, held in batch:
                self._store.release(held)
            STAGES.add("send the push", began)

    # Following

    def _follow(self, stripe: int, route: tuple[int, ...]) -> None:
        mine = self.logs[stripe]
        pause = 0.1
        while not mine.closed and not self._closed.is_set():
            for node in route:
                if self._subscribe(stripe, mine, node):
                    pause = 0.1
                if mine.closed or self._closed.is_set():
                    return
            if mine.idle_s > self._config.start_grace_s + self._config.give_up_s:
                mine.give_up_plan()
            self._closed.wait(pause)
            pause = min(10.0, pause * 2)

    def _subscribe(self, stripe: int, mine: StreamLog, node: int) -> bool:
        """Receive from one node until the stream ends or is lost. Return False if the node could not be asked."""
        link = self._links.open(node) if self._health.usable(node) else None
        reply = _StreamReply(self, mine, node)
        if link is None or not link.ask(wire.STREAM, json.dumps([stripe, len(mine.items)]).encode(), reply):
            return False
        while not reply.over.wait(1.0) and not self._closed.is_set():
            pass
        return True

    def arrived(self, mine: StreamLog, node: int, body: memoryview) -> bool:
        """Handle a pushed object. Return False if its bytes are wrong. The stream then continues from another node."""
        key, stated, data = wire.parse_object(body)
        if key not in self._store:
            began = perf_counter()
            right = digest(key, data) == stated
            STAGES.add("digest of the push", began)
            if not right:
                self._arrivals.wrong_bytes(node)
                return False
            self._keep(node, [(key, stated, len(data))], data)
        mine.add(key)
        self._note_end(mine)
        return True

    def batch_arrived(self, mine: StreamLog, node: int, body: memoryview) -> bool:
        """Handle pushed objects in one frame.

        Return False if the bytes of one are wrong. Objects before it are kept.
        """
        objects = wire.parse_batch(body)
        start = end = len(body) - sum(len(data) for _, _, data in objects)  # of the bytes of `run`
        run: list[tuple[bytes, bytes, int]] = []
        for position, (key, stated, data) in enumerate(objects):
            if key in self._store:
                self._keep(node, run, body[start:end])
                run = []
                start = end = end + len(data)
                continue
            began = perf_counter()
            right = digest(key, data) == stated
            STAGES.add("digest of the push", began)
            if not right:
                self._keep(node, run, body[start:end])
                mine.add(*(key for key, _, _ in objects[:position]))
                self._arrivals.wrong_bytes(node)
                return False
            run.append((key, stated, len(data)))
            end += len(data)
        self._keep(node, run, body[start:end])
        mine.add(*(key for key, _, _ in objects))
        self._note_end(mine)
        return True

    def _note_end(self, mine: StreamLog) -> None:
        """Record how long the planned part took to arrive."""
        began = self._first_at.setdefault(id(mine), perf_counter())
        if began and mine.plan and mine.plan_over:
            STAGES.add("push, first to last object", began)
            self._first_at[id(mine)] = 0.0

    def _keep(self, node: int, run: list[tuple[bytes, bytes, int]], data: memoryview) -> None:
        """Store objects (key, digest, size) whose bytes are contiguous in `data`."""
        if run:
            self.pushed_bytes += len(data)
            self._arrivals.pushed(node, run, data)


def _tell_local(store: Store, inbound: Inbound, request: int, source: StreamLog, position: int) -> None:
    """Send locations to the mount process, which reads the store itself. SKIP ends the planned part."""
    planned = True
    while not inbound.closed:
        news = source.items[position : position + 256]
        position += len(news)
        keys = [key for key in news if key is not None and not inbound.has_asked(key)]
        held = [(key, place.pack()) for key in keys if (place := store.place_of(key)) is not None]
        if held:
            inbound.send(wire.HAVE, request, wire.join_keys(part for pair in held for part in pair), last=False)
        if planned and source.plan_over and position >= len(source.plan or ()):
            planned = False
            inbound.send(wire.SKIP, request, last=False)
        if not news and source.closed:
            inbound.send(wire.END, request)
            return
        if not news:
            _wait_and_gather(source, position)


def _wait_and_gather(source: StreamLog, position: int) -> None:
    """Wait a moment for more objects. They arrive one by one, so this saves wake-ups here and down the tree."""
    source.wait_beyond(position, 1.0)
    time.sleep(_GATHER_S)


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
        elif kind == wire.BATCH:
            if not self._streams.batch_arrived(self._mine, self._node, body):
                self.over.set()
                return True
        elif kind == wire.SKIP:
            self._mine.add(bytes(body) or None)
        else:
            if kind == wire.END:
                self._mine.close()
            self.over.set()
            return True
        return False

    def lost(self, reason: str) -> None:
        self.over.set()
