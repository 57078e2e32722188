"""Warm the kernel: put pushed objects into the kernel's caches before a program requests them.

Directories are listed once through the mount, which fills the kernel's table of names. The pages of files are passed
with the kernel's "store" notification. A program then finds names and pages as in a second run, and this process
receives no requests.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from time import perf_counter

from windlass.node.cache.backend import Backend
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.fuse import Server
from windlass.node.cache.keys import DIRECTORY, parse_key, runs
from windlass.node.cache.stages import STAGES
from windlass.node.cache.store import parse_location
from windlass.node.cache.view import Node, View
from windlass.node.sys.memory import memory_left
from windlass.node.wire import wire

log = logging.getLogger("windlass.cache")
_PLAN_OVER: list[bytes] = []
_RUN_BYTES = 1 << 20


class Warmer:
    """Follow the peer process's stream of arrivals, on a separate thread."""

    def __init__(self, config: NodeConfig, view: View, backend: Backend, server: Server) -> None:
        self._config = config
        self._view = view
        self._backend = backend
        self._server = server
        self._keys: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._run_chunks = max(1, _RUN_BYTES // config.chunk_bytes)
        self._buffer = memoryview(bytearray(self._run_chunks * config.chunk_bytes))
        self._left = memory_left() // 4  # pages can be dropped again, but not for free
        self._wanted = config.warm and bool(config.trace_in)
        # Warmed objects are never requested and so not recorded. The node that writes the trace therefore warms only
        # the objects that an older trace names.
        self._records = bool(config.trace_out)
        self._planned_left = config.stripes
        self._ended = False
        self._objects = 0
        self._bytes = 0

    def status(self) -> dict[str, object]:
        return {"wanted": self._wanted, "ended": self._ended, "objects": self._objects, "bytes": self._bytes}

    def start(self) -> None:
        """Subscribe to the streams. Does nothing if nothing can be pushed."""
        if not self._config.warm or not (self._config.trace_in or self._config.live):
            return
        for stripe in range(self._config.stripes):
            if not self._backend.subscribe(json.dumps([stripe, 0]).encode(), _Arrivals(self._backend, self._keys)):
                self._keys.put(_PLAN_OVER)
                self._keys.put(None)
        threading.Thread(target=self._run, name="warm", daemon=True).start()

    def _run(self) -> None:
        open_streams = self._config.stripes
        while open_streams:
            keys = self._keys.get()
            if keys is None:
                open_streams -= 1
            elif keys is _PLAN_OVER:
                self._end_of_plan()
            elif not self._warm_all(keys):
                break
        while self._planned_left:
            self._end_of_plan()

    def _warm_all(self, keys: list[bytes]) -> bool:
        """Warm all objects. Return False if the mount is gone."""
        for run in runs(keys, self._run_chunks):
            planned = self._wanted and not self._ended
            # For a directory outside the plan, only store the location. The first access to it must reach this process,
            # because it is a hint.
            if not planned and (self._records or run[0][0] == DIRECTORY):
                continue
            began = perf_counter()
            try:
                self._warm(run)
                STAGES.add("warm a folder" if run[0][0] == DIRECTORY else "warm pages", began)
            except OSError as error:
                if error.errno in (107, 103, 19):  # ENOTCONN, ECONNABORTED, ENODEV: unmounted
                    return False
                log.debug("not warmed: %s", error)
        return True

    def _end_of_plan(self) -> None:
        self._planned_left -= 1
        if self._planned_left == 0:
            self._ended = True
            self._backend.send_news()

    def _warm(self, run: list[bytes]) -> None:
        parsed = parse_key(run[0])
        if parsed.kind == DIRECTORY:
            # Go through the mount on purpose, because the answer to this listing fills the kernel's table of names.
            with os.scandir(self._config.mount.encode() + parsed.path) as entries:
                for _ in entries:
                    pass
            self._objects += 1
            return
        node = self._view.known(parsed.path)
        if node is None:
            os.lstat(self._config.mount.encode() + parsed.path)
            node = self._view.known(parsed.path)
        if node is None or self._left < self._config.chunk_bytes:
            return
        if self._store_pages(node, parsed.chunk, run) < 0:
            for index, key in enumerate(run):
                self._store_pages(node, parsed.chunk + index, [key])

    def _store_pages(self, node: Node, chunk: int, run: list[bytes]) -> int:
        """Give bytes to the kernel at once and return their number.

        Return -1 if they are not contiguous in the store.
        """
        if len(run) == 1:
            size = self._backend.read_into(run[0], 0, self._buffer)
        else:
            size = self._backend.store.read_run_into(run, self._buffer)
        if size > 0:
            self._server.store_pages(node, chunk * self._config.chunk_bytes, self._buffer[:size])
            self._left -= size
            self._objects += len(run)
            self._bytes += size
        return size


class _Arrivals:
    """Frames of keys from the peer process."""

    def __init__(self, backend: Backend, keys: queue.SimpleQueue[list[bytes] | None]) -> None:
        self._backend = backend
        self._keys = keys

    def frame(self, kind: int, body: memoryview) -> bool:
        if kind == wire.HAVE:
            parts = wire.split_keys(bytes(body))
            for key, place in zip(parts[::2], parts[1::2]):
                self._backend.store.learn(key, parse_location(place))
            self._keys.put(parts[::2])
            return False
        if kind == wire.SKIP:
            self._keys.put(_PLAN_OVER)
            return False
        self._keys.put(None)
        return True

    def lost(self, reason: str) -> None:
        self._keys.put(None)
