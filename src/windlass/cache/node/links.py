"""The links this node has open to others, opened when first needed and remembered with the port that answered."""

from __future__ import annotations

import threading
import time

from . import wire
from .config import NodeConfig
from .limits import Health
from .link import Link, connect

MAX_LINKS = 128


class Links:
    def __init__(self, config: NodeConfig, key: bytes, health: Health) -> None:
        self._config = config
        self._key = key
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
        """An open link, or None after its failure was noted. Blocks up to the peer timeout; longer only while the job
        starts and the node has never been seen: it is coming up, and to go round it would be the storm."""
        with self._lock:
            opening = self._opening.setdefault(node, threading.Lock())
        with opening:
            link = self.existing(node)
            while link is None and not self.closed:
                if not self._health.usable(node):
                    return None
                link = self._try(node)
                if link is None:
                    if node in self._ports or time.monotonic() >= self._grace_end:
                        self._health.failed(node)
                        return None
                    time.sleep(0.05)
            return link

    def _try(self, node: int) -> Link | None:
        ports = wire.port_candidates(self._key)
        known = self._ports.get(node)
        if known is not None:
            ports = (known,)
        host = self._config.hosts[node]
        mine = self._config.hosts[self._config.node]
        try:
            link, port = connect(
                host,
                ports,
                self._key,
                self._config.node,
                node,
                self._config.peer_timeout_s,
                mine if mine.startswith("127.") else "",
            )
        except (OSError, wire.ProtocolError):
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
        """All nodes have been seen: from now on a node that does not answer is a fault."""
        self._grace_end = 0.0

    def close(self) -> None:
        self.closed = True
        for link in list(self._links.values()):
            link.close()
