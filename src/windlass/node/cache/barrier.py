"""The readiness barrier: each node reports to its parent which nodes below it are up.

The barrier is complete when the root has reports for all nodes. It replaces a fixed sleep. Reads do not need it. It
only marks the time when the whole job may start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.limits import NodeHealth
from windlass.node.wire import wire
from windlass.node.wire.link import Collect
from windlass.node.wire.links import Links
from windlass.node.wire.tree import tree_route


class Barrier:
    def __init__(self, config: NodeConfig, links: Links, health: NodeHealth) -> None:
        self._config = config
        self._links = links
        self._health = health
        self._lock = threading.Lock()
        self._ready = 1 << config.node
        self._all = (1 << config.nodes) - 1
        self._closed = threading.Event()
        self._news = threading.Event()
        self._then: Callable[[], None] = lambda: None
        self.complete = config.nodes == 1

    def start(self, then: Callable[[], None]) -> None:
        """Start reporting to the parent. Call `then` once all nodes are up."""
        self._then = then
        if self.complete:
            then()
        threading.Thread(target=self._report, name="barrier", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._news.set()

    @property
    def ready_count(self) -> int:
        return self._config.nodes if self.complete else bin(self._ready).count("1")

    def missing(self) -> list[int]:
        """Return the nodes without a report. Only at the root does this mean that they are not up."""
        if self.complete:
            return []
        return [n for n in range(self._config.nodes) if not self._ready >> n & 1]

    def heard(self, body: bytes) -> bytes:
        """Record a child's report. The reply states whether all nodes are up."""
        self._merge(int.from_bytes(body, "little") & self._all)
        return b"\1" if self.complete else b"\0"

    def _merge(self, ready: int) -> None:
        with self._lock:
            if ready & ~self._ready:
                self._ready |= ready
                self._news.set()
            if self._ready == self._all:
                self._finish()

    def _finish(self) -> None:
        if not self.complete:
            self.complete = True
            self._then()

    def _report(self) -> None:
        config = self._config
        route = tree_route(config.node, 0, config.stripes, config.nodes, config.children_each)
        pause = 0.02
        while route and not self.complete and not self._closed.is_set():
            self._news.clear()
            for node in route:
                if self._ask(node):
                    break
            self._news.wait(pause)
            pause = min(0.5, pause * 1.5)

    def _ask(self, node: int) -> bool:
        link = self._links.open(node) if self._health.usable(node) else None
        if link is None:
            return False
        reply = Collect()
        body = self._ready.to_bytes((self._config.nodes + 7) // 8, "little")
        if not link.ask(wire.READY, body, reply):
            return False
        try:
            _, answer = reply.wait(self._config.peer_timeout_s)
        except OSError:
            return False
        if answer == b"\1":
            self._finish()
        return True
