"""The cache as the mount process uses it: the node's store, the peer process, and the shared file system.

Objects come from the store, then from the peer process, and from the shared file system if the peer process is gone.
The mount outlives the peer process. If the peer process is dead or stopped, the mount process logs one warning and
stops sharing. Reads still succeed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.keys import DIRECTORY, BadKeyError, digest, directory_key
from windlass.node.cache.limits import TokenBucket, fallback_jitter_s
from windlass.node.cache.listing import Listing
from windlass.node.cache.source import Source
from windlass.node.cache.stages import STAGES, thread_figures
from windlass.node.cache.store import StoreReader, parse_location
from windlass.node.wire import wire
from windlass.node.wire.link import Link, Reply, open_local_link
from windlass.node.wire.proof import NO_NODE, ProtocolError
from windlass.node.wire.timers import Pool

log = logging.getLogger("windlass.cache")
Fetched = Callable[["OSError | None"], None]
_IN_HAND = 64
_LISTING_BYTES = 96 << 20
_RETRY_PEER_S = 5.0
_NEWS_EVERY_S = 0.5


class Backend:
    """Implement `view.LocalObjects` and fetch missing objects."""

    def __init__(self, config: NodeConfig, key: bytes) -> None:
        self._config = config
        self._identity = config.identity(key)._replace(node=NO_NODE)
        self.store = StoreReader(config.store)
        self._source = Source(config.roots, config.chunk_bytes, sparse=config.sparse)
        self._lock = threading.Lock()
        self._listings: OrderedDict[bytes, tuple[Listing, int]] = OrderedDict()
        self._listing_bytes = 0
        self._in_hand: OrderedDict[bytes, bytes] = OrderedDict()
        self._link: Link | None = None
        self._next_try = 0.0
        self._warned = False
        self._readers = Pool(config.source_threads, "source")
        self._bucket = TokenBucket(config.fallback_rate, config.fallback_rate)
        self._touched: list[bytes] = []
        self._asked: set[bytes] = set()
        self._news_lock = threading.Lock()
        self._closed = threading.Event()
        self.counters: dict[str, int] = {"hits": 0, "misses": 0, "hit_bytes": 0, "direct": 0, "errors": 0}
        self.extra_status: Callable[[], dict[str, Any]] = dict

    def start(self, deadline: float) -> None:
        """Wait for the peer process. Without it, the mount would start by reading the shared file system directly."""
        while self._connect() is None:
            if time.monotonic() > deadline:
                raise TimeoutError("the peer process did not come up at %s" % self._config.socket)
            time.sleep(0.02)

        def tell_news() -> None:
            last = ""
            while not self._closed.wait(_NEWS_EVERY_S):
                now = json.dumps(self.status())
                if self._touched or now != last:
                    last = now
                    self.send_news()

        threading.Thread(target=tell_news, name="news", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self.send_news()
        link = self._link
        if link is not None:
            link.close()
        self._readers.close()

    # Local objects

    def listing(self, path: bytes) -> Listing | None:
        held = self._listings.get(path)
        if held is not None:
            return held[0]
        key = directory_key(path)
        blob = self._in_hand.get(key) or self.store.read(key)
        if blob is None:
            return None
        listing = Listing(blob)
        self.touched(key)
        if key in self._asked:
            self._asked.discard(key)
        else:
            self.will_want(key, 0)
        # Names and their table need about as much memory again as the listing itself, twice as much for short names.
        weight = len(blob) + 150 * len(listing)
        with self._lock:
            self._listings[path] = listing, weight
            self._listing_bytes += weight
            while self._listing_bytes > _LISTING_BYTES and len(self._listings) > 1:
                self._listing_bytes -= self._listings.popitem(last=False)[1][1]
        return listing

    def read_into(self, key: bytes, offset: int, target: memoryview) -> int:
        got = self.store.read_into(key, offset, target)
        if got >= 0:
            self.counters["hits"] += 1
            self.counters["hit_bytes"] += got
            return got
        data = self._in_hand.get(key)
        if data is None:
            return -1
        part = data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)

    def will_want(self, key: bytes, count: int) -> None:
        link = self._link
        if link is not None and not link.closed:
            link.tell(wire.PREFETCH, count.to_bytes(2, "little") + key)

    def touched(self, key: bytes) -> None:
        self._touched.append(key)

    # Missing objects

    def fetch(self, key: bytes, done: Fetched, *, again: bool = False) -> None:
        """Bring an object here and call `done` once, from another thread.

        `again`: the object was brought here before and has been evicted.
        """
        self.counters["misses"] += 1
        if key[0] == DIRECTORY:
            self._asked.add(key)
        link = self._connect()
        kind = wire.GET_INLINE if again else wire.GET
        if link is None or not link.ask(kind, key, _FetchReply(self, key, done)):
            self.fetch_directly(key, done)

    def subscribe(self, body: bytes, arrivals: Reply) -> bool:
        """Subscribe to the arrivals of the peer process's stream. Return False if the peer process is not reachable."""
        link = self._connect()
        return link is not None and bool(link.ask(wire.STREAM, body, arrivals))

    def keep_in_hand(self, key: bytes, data: bytes) -> None:
        """Keep an object that did not fit into the store until the call that needs it."""
        with self._lock:
            self._in_hand[key] = data
            self._in_hand.move_to_end(key)
            while len(self._in_hand) > _IN_HAND:
                self._in_hand.popitem(last=False)

    def fetch_directly(self, key: bytes, done: Fetched) -> None:
        """Read the shared file system in this process, because the peer process does not answer."""
        if not self._warned:
            self._warned = True
            log.warning("the peer process of this node does not answer; reading the shared file system directly")
        delay = self._bucket.take()
        if self.counters["direct"] == 0:
            delay += fallback_jitter_s(self._config.nodes, random.Random(os.urandom(8)))
        self.counters["direct"] += 1
        try:
            self._readers.submit(lambda: self._read_source(key, done, delay))
        except RuntimeError:
            done(OSError(errno.ESHUTDOWN, "the cache is stopping"))

    def _read_source(self, key: bytes, done: Fetched, delay: float) -> None:
        if delay:
            self._closed.wait(delay)
        try:
            self.keep_in_hand(key, bytes(self._source.read(key)))
        except OSError as error:
            done(error)
            return
        except BadKeyError as error:
            done(OSError(errno.EINVAL, str(error)))
            return
        done(None)

    def _connect(self) -> Link | None:
        link = self._link
        if link is not None and not link.closed:
            return link
        now = time.monotonic()
        with self._lock:
            if now < self._next_try:
                return None
            self._next_try = now + (_RETRY_PEER_S if link is not None else 0.0)
        try:
            self._link = open_local_link(
                self._config.socket, self._identity, self._config.node, self._config.peer_timeout_s + 1.0
            )
        except (OSError, ProtocolError):
            return None

        def forget_gone(kind: int, body: bytes) -> None:
            if kind == wire.GONE:
                self.store.forget(int.from_bytes(body, "little"))

        self._link.on_news = forget_gone
        return self._link

    def status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            **self.counters,
            "source_calls": self._source.calls,
            "source_bytes": self._source.bytes,
            **self.extra_status(),
        }

    def send_news(self) -> None:
        """Send the counters and the keys touched since the last call to the peer process."""
        costs = {"stages": STAGES.figures(), "threads": thread_figures()}
        head = json.dumps({**self.status(), **costs}).encode() + b"\n"
        with self._news_lock:  # a thread that closes the link must not overtake another thread's message
            touched, self._touched = self._touched, []
            link = self._link
            if link is None or link.closed:
                return
            for start in range(0, max(1, len(touched)), 500):
                link.tell(wire.TOUCH, head + wire.join_keys(touched[start : start + 500]))


class _FetchReply:
    def __init__(self, backend: Backend, key: bytes, done: Fetched) -> None:
        self._backend = backend
        self._key = key
        self._done = done

    def frame(self, kind: int, body: memoryview) -> bool:
        if kind == wire.HAVE:
            self._backend.store.learn(self._key, parse_location(body))
            self._done(None)
        elif kind == wire.OBJECT:
            key, stated, data = wire.parse_object(body)
            if key != self._key or digest(key, data) != stated:
                self._backend.fetch_directly(self._key, self._done)
            else:
                self._backend.keep_in_hand(key, bytes(data))
                self._done(None)
        elif kind == wire.ERROR:
            error = wire.parse_error(bytes(body))
            if error.errno in (errno.ESHUTDOWN, errno.EAGAIN):
                self._backend.fetch_directly(self._key, self._done)
            else:
                self._backend.counters["errors"] += 1
                self._done(error)
        return True

    def lost(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            self._backend.fetch_directly(self._key, self._done)
