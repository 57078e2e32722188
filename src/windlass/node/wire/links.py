"""The open links of this node. A link is opened when first needed and stored with the port that answered."""

from __future__ import annotations

import threading
import time

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.limits import NodeHealth
from windlass.node.wire.dial import Target
from windlass.node.wire.link import Link, open_link
from windlass.node.wire.ports import port_candidates
from windlass.node.wire.proof import ProtocolError

MAX_LINKS = 128


class Links:
    def __init__(self, config: NodeConfig, key: bytes, health: NodeHealth) -> None:
        self._config = config
        self._identity = config.identity(key)
        self._health = health
        self._lock = threading.Lock()
        self._links: dict[int, Link] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._ports: dict[int, int] = {}
        self._grace_end = time.monotonic() + config.start_grace_s
        self.closed = False

    def existing(self, node: int) -> Link | None:
        link = self._links.get(node)
        return link if link is not None and not link.closed else None

    def open(self, node: int) -> Link | None:
        """Return an open link, or None after recording the failure.

        Blocks up to the peer timeout. It blocks longer only while the job starts and the node has never answered. That
        node is still starting, and bypassing it would cause the storm of reads that the tree prevents.
        """
        with self._lock:
            opening = self._opening.setdefault(node, threading.Lock())
        with opening:
            link = self.existing(node)
            pause = 0.05
            while link is None and not self.closed:
                if not self._health.usable(node):
                    return None
                link = self._try(node)
                if link is None:
                    if node in self._ports or time.monotonic() >= self._grace_end:
                        self._health.failed(node)
                        return None
                    time.sleep(pause)
                    pause = min(0.25, pause * 1.5)
            return link

    def _try(self, node: int) -> Link | None:
        known = self._ports.get(node)
        ports = (known,) if known is not None else port_candidates(self._identity, node)
        mine = self._config.hosts[self._config.node]
        source = mine if mine.startswith("127.") else ""
        target = Target(self._config.hosts[node], ports, node, source)
        try:
            link, port = open_link(target, self._identity, self._config.peer_timeout_s)
        except (OSError, ProtocolError):
            return None
        self._ports[node] = port
        with self._lock:
            self._links[node] = link
            self._close_idle()
        return link

    def _close_idle(self) -> None:
        for node, link in list(self._links.items()):
            if link.closed:
                del self._links[node]
        if len(self._links) > MAX_LINKS:
            for node, link in list(self._links.items())[: len(self._links) - MAX_LINKS]:
                if link.idle:
                    link.close("idle")
                    del self._links[node]

    def end_grace(self) -> None:
        """Record that all nodes have answered once. From now on a node that does not answer is a fault."""
        self._grace_end = 0.0

    def close(self) -> None:
        self.closed = True
        for link in list(self._links.values()):
            link.close()
