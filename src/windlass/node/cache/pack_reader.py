"""Read a pack at the start: neighbouring objects in large pieces, on a few threads, verified before use."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from time import perf_counter

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.fetcher import Fetcher
from windlass.node.cache.flight import FetchResult, Landing
from windlass.node.cache.pack import BadPackError, Pack, checked, open_pack, pack_path
from windlass.node.cache.stages import STAGES
from windlass.node.wire import wire
from windlass.node.wire.timers import Pool

log = logging.getLogger("windlass.cache")
_THREADS = 4  # reading, hashing and storing release the interpreter lock


class PackReader:
    """Collect objects that are neighbours in the pack and read them together. Called from one thread only."""

    def __init__(self, pack: Pack, path: str, fetcher: Fetcher, chunk_bytes: int) -> None:
        self._pack = pack
        self._path = path
        self._fetcher = fetcher
        self._buffer_bytes = wire.BATCH_BYTES + chunk_bytes
        self._pool = Pool(_THREADS, "pack")
        self._own = threading.local()
        self._open: list[tuple[bytes, bytes, int]] = []  # key, digest, size
        self._start = self._end = 0
        self._landing = Landing()
        self._damaged = False

    @classmethod
    def open(cls, config: NodeConfig, fetcher: Fetcher) -> PackReader | None:
        """Return the pack of the configured trace, or None if no usable pack exists."""
        path = pack_path(config.trace_in)
        try:
            return cls(open_pack(path, config.chunk_bytes), path, fetcher, config.chunk_bytes)
        except FileNotFoundError:
            return None
        except (OSError, BadPackError) as error:
            log.warning("the pack of the trace is not used: %s", error)
            return None

    def begin(self, key: bytes, ctime_ns: int) -> Landing | None:
        """Return the landing for an object. Return None if the pack does not have its current version."""
        packed = self._pack.index.get(key)
        if packed is None or packed.ctime_ns != ctime_ns or self._damaged:
            return None
        full = self._end - self._start + packed.size > wire.BATCH_BYTES or len(self._open) == wire.BATCH_OBJECTS
        if self._open and (packed.offset != self._end or full):
            self.flush()
        if not self._open:
            self._start = packed.offset
        self._end = packed.offset + packed.size
        self._open.append((key, packed.digest, packed.size))
        return self._landing

    def flush(self) -> None:
        """Read the collected objects."""
        if not self._open:
            return
        objects, start, end, landing = self._open, self._start, self._end, self._landing
        self._open, self._landing = [], Landing()
        try:
            self._pool.submit(lambda: self._read(objects, start, end, landing))
        except RuntimeError as error:
            landing(FetchResult(error=OSError(str(error))))

    def close(self) -> None:
        self.flush()
        self._pool.close()
        self._pool.wait(10.0)
        self._pack.close()

    def _read(self, objects: list[tuple[bytes, bytes, int]], start: int, end: int, landing: Landing) -> None:
        try:
            if not self._damaged:
                self._read_pack(objects, start, end)
            else:
                self._read_files(objects)
        finally:
            landing(FetchResult())

    def _read_pack(self, objects: list[tuple[bytes, bytes, int]], start: int, end: int) -> None:
        buffer = getattr(self._own, "buffer", None)
        if buffer is None or len(buffer) < end - start:
            buffer = self._own.buffer = memoryview(bytearray(max(self._buffer_bytes, end - start)))
        data = buffer[: end - start]
        began = perf_counter()
        try:
            self._pack.read_into(start, data)
            began = STAGES.add("pack: read", began)
            right = checked(objects, data)
            STAGES.add("pack: digest", began)
        except OSError as error:
            log.warning("the pack of the trace cannot be read: %s", error)
            right = False
        if right:
            self._fetcher.reader.landed_from_pack(objects, data)
            return
        if not self._damaged:
            self._damaged = True
            log.warning("the pack of the trace is damaged and removed; what it held is read from the files themselves")
            with contextlib.suppress(OSError):  # so that this run writes a new pack
                os.unlink(self._path)
        self._read_files(objects)

    def _read_files(self, objects: list[tuple[bytes, bytes, int]]) -> None:
        for flight in self._fetcher.reader.claim(key for key, _, _ in objects):
            self._fetcher.reader.read_run([flight])
