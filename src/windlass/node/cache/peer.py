"""The peer process of a node: answer the mount process, other nodes and the tools."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

from windlass.node.cache.arrivals import Arrivals
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.fetcher import Fetcher
from windlass.node.cache.flight import FetchResult
from windlass.node.cache.keys import CHUNK, DIRECTORY, HEAD_BYTES, BadKeyError, chunk_count, chunk_key, parse_key
from windlass.node.cache.limits import NodeHealth
from windlass.node.cache.saver import TraceSaver
from windlass.node.cache.server import MAX_CONNECTIONS, Inbound
from windlass.node.cache.source import Source
from windlass.node.cache.source_reader import SourceReader
from windlass.node.cache.stages import STAGES, thread_figures
from windlass.node.cache.store import Store
from windlass.node.cache.stream import Streams
from windlass.node.cache.streamlog import StreamLog
from windlass.node.wire import wire
from windlass.node.wire.accept import Acceptor
from windlass.node.wire.link import Collect
from windlass.node.wire.links import Links
from windlass.node.wire.ports import listen_tcp, listen_unix, port_candidates
from windlass.node.wire.proof import ProtocolError
from windlass.node.wire.timers import Pool, Timers
from windlass.node.wire.tree import children, tree_route


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


log = logging.getLogger("windlass.cache")
MAX_PREFETCH = 64
_DIRECTORY = bytes([DIRECTORY])


class Peer:
    """All parts of the peer process. `start` returns when it listens. `stopped` is set when a stop was requested."""

    def __init__(self, config: NodeConfig, key: bytes) -> None:
        self.config = config
        self._identity = config.identity(key)
        self._started = time.time()
        self.stopped = threading.Event()
        self._timers = Timers()
        self._health = NodeHealth()
        self._source = Source(config.roots, config.chunk_bytes, sparse=config.sparse)
        self._store = Store(config.store, config.budget_bytes)
        self._store.on_gone = self._segment_gone
        self._links = Links(config, key, self._health)
        arrivals = Arrivals(config, self._store, self._health)
        reader = SourceReader(config, self._source, arrivals)
        logs = [StreamLog() for _ in range(config.stripes)]
        self.fetcher = Fetcher(config, reader, arrivals, self._links, self._timers, logs)
        self._streams = Streams(config, self.fetcher, self._links, logs)
        self._barrier = Barrier(config, self._links, self._health)
        self._saver = TraceSaver(config, self._store, self._streams.planned)
        self._mount_status: dict[str, Any] = {}
        self._mount_link: Inbound | None = None
        self._askers = Pool(4, "asker")
        self._acceptors: list[Acceptor] = []

    def start(self) -> None:
        """Listen, join the other nodes and start to push. Raises `OSError` if no port or socket is available."""
        config = self.config
        tcp = listen_tcp(config.hosts[config.node], port_candidates(self._identity, config.node))
        self.port = tcp.getsockname()[1]
        for listening in (tcp, listen_unix(config.socket)):
            acceptor = Acceptor(
                listening,
                self._identity,
                lambda channel: Inbound(channel, self).run(),
                max_proven=MAX_CONNECTIONS,
            )
            self._acceptors.append(acceptor)
        self._streams.start()
        self._barrier.start(self._links.end_grace)
        self._saver.start(self._timers)

    def close(self) -> None:
        """End all work, save the trace and empty the store."""
        self._barrier.close()
        self._streams.close()
        for acceptor in self._acceptors:
            acceptor.close()
        self._links.close()
        self._timers.close()
        self.fetcher.close()
        self._askers.close()
        self._saver.end()
        self._store.on_gone = lambda number: None  # the mount process ends too
        self._store.close()
        self._source.close()
        with contextlib.suppress(OSError):
            os.unlink(self.config.socket)

    # Requests

    def serve(self, connection: Inbound, kind: int, request: int, body: bytes) -> None:
        if kind in (wire.GET, wire.GET_INLINE):
            self._get(connection, request, body, inline=kind == wire.GET_INLINE)
        elif kind == wire.TOUCH:
            self._touched(connection, body)
        elif kind == wire.PREFETCH:
            self._prefetch(body)
        elif kind == wire.STREAM:
            stripe, position = _two_numbers(body)
            work = lambda: self._streams.feed(connection, request, stripe, position)  # noqa: E731
            threading.Thread(target=work, name="feed", daemon=True).start()
        elif kind == wire.READY:
            connection.send(wire.ANSWER, request, self._barrier.heard(body))
        elif kind == wire.PING:
            connection.send(wire.ANSWER, request, b"{}")
        elif kind == wire.STATUS:
            self._askers.submit(lambda: self._answer_status(connection, request, body))

    def _get(self, connection: Inbound, request: int, key: bytes, *, inline: bool, tries: int = 3) -> None:
        began = perf_counter()
        stage = "answer the mount" if connection.local else "answer a node"

        def answer(outcome: FetchResult) -> None:
            self._answer(connection, request, key, outcome, inline=inline, tries=tries)
            STAGES.add(stage, began)

        def done(outcome: FetchResult) -> None:
            # A few bytes to the mount process, or a hit answered by the thread that read the request, are sent at once.
            # All other answers may have to wait for a slow child, so the connection's writer thread sends them.
            if connection.is_reader() or (connection.local and outcome.data is None and not inline):
                answer(outcome)
            else:
                connection.later(lambda: answer(outcome))

        connection.asks(key)
        if key[:1] == _DIRECTORY:
            self._streams.looked_into(key[HEAD_BYTES:])
        try:
            self.fetcher.obtain(key, done, idle=connection.is_idle())
        except BadKeyError as error:
            connection.send(wire.ERROR, request, wire.error_body(22, str(error)))

    def _answer(
        self, connection: Inbound, request: int, key: bytes, outcome: FetchResult, *, inline: bool, tries: int
    ) -> None:
        if outcome.error is not None:
            number = outcome.error.errno or 5
            connection.send(wire.ERROR, request, wire.error_body(number, outcome.error.strerror or str(outcome.error)))
        elif outcome.data is not None:
            connection.send(wire.OBJECT, request, wire.object_prefix(key, outcome.digest), outcome.data)
        elif connection.local and not inline and (place := self._store.place_of(key)) is not None:
            connection.send(wire.HAVE, request, place.pack())
        else:
            held = self._store.hold(key)
            if held is not None:
                try:
                    connection.send_file(request, wire.object_prefix(key, held.digest), held)
                finally:
                    self._store.release(held)
            elif tries:  # evicted in the meantime
                self._get(connection, request, key, inline=inline, tries=tries - 1)
            else:
                connection.send(wire.ERROR, request, wire.error_body(11, "evicted again and again"))

    def _prefetch(self, body: bytes) -> None:
        """Prefetch a run of chunks, given by its first key and its length, because the reader will need them soon.

        For a directory that a program opened, fetch what usually follows.
        """
        if len(body) < 2:
            return
        try:
            key = parse_key(body[2:])
        except BadKeyError:
            return
        if key.kind != CHUNK:
            self._streams.looked_into(key.path)
            return
        count = min(int.from_bytes(body[:2], "little"), MAX_PREFETCH)
        end = min(key.chunk + count, chunk_count(key.pin.size, self.config.chunk_bytes))
        for index in range(key.chunk, end):
            wanted = chunk_key(key.path, key.pin, index)
            if wanted not in self._store:
                self.fetcher.obtain(wanted, lambda outcome: None)

    def _touched(self, connection: Inbound, body: bytes) -> None:
        """Handle a message from the mount process: its counters, and the keys of first reads, in order."""
        if not connection.local:
            return
        head, _, rest = body.partition(b"\n")
        self._mount_status = json.loads(head)
        self._mount_link = connection
        for key in wire.split_keys(rest):
            self._store.digest_of(key)
            self._saver.touched(key)

    def _segment_gone(self, number: int) -> None:
        """Tell the mount process that a segment is gone. It holds the segment's memory until this message arrives."""
        link = self._mount_link
        if link is not None and not link.closed:
            link.later(lambda: link.send(wire.GONE, 0, number.to_bytes(8, "little")))

    # Status and stop

    def status(self) -> dict[str, Any]:
        """Return the status of this node as JSON values."""
        counts = self.fetcher.arrivals.counts
        mount_alive = self._mount_link is not None and not self._mount_link.closed
        return {
            "node": self.config.node,
            "nodes": self.config.nodes,
            "host": self.config.hosts[self.config.node],
            "state": self._state(),
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started, 1),
            "ready_nodes": self._barrier.ready_count,
            "missing_nodes": self._barrier.missing(),
            "objects": len(self._store),
            "used_bytes": self._store.used_bytes,
            "budget_bytes": self._store.budget_bytes,
            "evicted": self._store.evicted,
            "refused": self._store.refused,
            "calls": dict(counts.calls),
            "bytes": dict(counts.bytes),
            "source_calls": self._source.calls,
            "source_bytes": self._source.bytes,
            "failovers": counts.failovers,
            "fallbacks": counts.fallbacks,
            "corrupt": counts.corrupt,
            "changed": counts.changed,
            "errors": counts.errors,
            "left_out": list(self._health.paused()),
            "push": self._streams.status(),
            "stages": STAGES.figures(),
            "threads": thread_figures(),
            "mount": dict(self._mount_status, alive=mount_alive),
            "strangers_refused": sum(acceptor.refused for acceptor in self._acceptors),
        }

    def _state(self) -> str:
        """Return the state.

        `deaf` means that no connection can be accepted now, for lack of threads, descriptors or memory.
        """
        if not all(acceptor.is_accepting for acceptor in self._acceptors):
            return "deaf"
        return "ready" if self._barrier.complete else "starting"

    def _answer_status(self, connection: Inbound, request: int, body: bytes) -> None:
        asked = json.loads(body or b"{}")
        found = [self.status()]
        if asked.get("tree"):
            found += self._ask_below(self.config.node, float(asked.get("timeout_s", 5.0)))
        connection.send(wire.ANSWER, request, json.dumps(found).encode())

    def _ask_below(self, node: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return the status of the whole tree below `node`. If a child does not answer, ask its children directly."""
        config = self.config
        asked: list[tuple[int, Collect | None]] = []
        body = json.dumps({"tree": True, "timeout_s": timeout_s * 0.8}).encode()
        for child in children(node, 0, config.stripes, config.nodes, config.children_each):
            link = self._links.existing(child) or (self._links.open(child) if self._health.usable(child) else None)
            reply = Collect()
            asked.append((child, reply if link is not None and link.ask(wire.STATUS, body, reply) else None))
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout_s
        for child, waiting in asked:
            try:
                if waiting is None:
                    raise ConnectionError("no connection")
                found += json.loads(waiting.wait(max(0.1, deadline - time.monotonic()))[1])
            except (OSError, ValueError) as error:
                found.append({"node": child, "host": config.hosts[child], "state": "gone", "reason": str(error)})
                found += self._ask_below(child, timeout_s * 0.8)
        return found


def _two_numbers(body: bytes) -> tuple[int, int]:
    try:
        first, second = json.loads(body)
        return int(first), int(second)
    except (ValueError, TypeError) as error:
        raise ProtocolError("not a stream request: %s" % error) from error
