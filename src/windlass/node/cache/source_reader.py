"""Read objects of the shared file system for this node: on separate threads, neighbouring chunks in one read."""

from __future__ import annotations

import errno
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

from windlass.node.cache.arrivals import Arrivals, NamedObject
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.flight import FetchResult, Flight
from windlass.node.cache.keys import (
    CHUNK,
    DIRECTORY,
    BadKeyError,
    chunk_count,
    chunk_index,
    digest,
    file_size,
    runs,
    sibling_key,
)
from windlass.node.cache.source import Source
from windlass.node.cache.stages import STAGES
from windlass.node.wire.timers import Pool

RUN_CHUNKS = 4  # library chunks that are read together: neighbours of a requested chunk are mostly needed too
GAP_CHUNKS = 8
FIRST_WINDOW, LAST_WINDOW = 8, 32
_SWEEPS_EACH = 6
_FILES = 256


class FileSweep(NamedTuple):
    """A sweep through a file. The chunks from `start` to `end` are in transit.

    `window` is the size of the last request. It is negative for a backwards sweep.
    """

    start: int
    end: int
    window: int


class Neighbours:
    """The sweeps of the files that are read. Thread-safe. It only decides and reads nothing."""

    def __init__(self, chunk_bytes: int, limit_bytes: int) -> None:
        """`limit_bytes` limits all windows together. The group of a chunk is always read."""
        self._chunk_bytes = chunk_bytes
        self._left = limit_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[bytes, list[FileSweep]] = OrderedDict()

    def of(self, key: bytes) -> range:
        """Return the numbers of the chunks to read after the chunk of `key`, which may be among them."""
        index = chunk_index(key)
        count = chunk_count(file_size(key), self._chunk_bytes)
        with self._lock:
            sweeps = self._files.setdefault(key[5:], [])
            self._files.move_to_end(key[5:])
            if len(self._files) > _FILES:
                self._files.popitem(last=False)
            found = next((s for s in sweeps if s.start - GAP_CHUNKS <= index < s.end + GAP_CHUNKS), None)
            if found is None:
                group = index - index % RUN_CHUNKS
                sweep = FileSweep(group, min(group + RUN_CHUNKS, count), 0)
                wanted = range(sweep.start, sweep.end)
            elif found.start <= index < found.end:
                return range(0)  # in transit already
            else:
                sweeps.remove(found)
                window = self._window(found, forwards=index >= found.end)
                if window > 0:
                    wanted = range(index + 1, min(index + 1 + window, count))
                    sweep = FileSweep(found.start, max(index + 1, wanted.stop), window)
                else:
                    wanted = range(max(0, index + window), index)
                    sweep = FileSweep(wanted.start, found.end, window)
            sweeps.insert(0, sweep)
            del sweeps[_SWEEPS_EACH:]
        return wanted

    def _window(self, sweep: FileSweep, *, forwards: bool) -> int:
        """Return twice the last window if the sweep continues in its direction. The value is negative for backwards."""
        goes_on = sweep.window > 0 if forwards else sweep.window < 0
        window = min(LAST_WINDOW, max(FIRST_WINDOW, 2 * abs(sweep.window) if goes_on else 0))
        if self._left < window * self._chunk_bytes:
            window = RUN_CHUNKS
        else:
            self._left -= window * self._chunk_bytes
        return window if forwards else -window


log = logging.getLogger("windlass.cache")
_RUN_BYTES = 1 << 20
_MAX_SWEPT_BYTES = 512 << 20
_READERS_IF_SLOW = 32
_SHORT_S = 0.002  # a read of the shared file system that is too short to wake another thread for it


class ReadListener(Protocol):
    """Receives the objects that this node reads for itself and for others."""

    def were_read(self, objects: Sequence[tuple[bytes, bytes | memoryview]]) -> None: ...

    def became_slow(self) -> None:
        """From now on reading is mostly waiting, so many reads should be in progress."""


class SourceReader:
    """Read for flights and always end them, also on errors. Thread-safe."""

    def __init__(self, config: NodeConfig, source: Source, arrivals: Arrivals) -> None:
        self._config = config
        self._source = source
        self._arrivals = arrivals
        self._readers = Pool(config.source_threads, "source")
        # If reads are fast, more threads gain nothing, because they wait for the interpreter lock.
        self._beside = Pool(2, "beside")
        self._neighbours = Neighbours(config.chunk_bytes, min(_MAX_SWEPT_BYTES, config.budget_bytes // 4))
        self._listeners: tuple[ReadListener, ...] = ()
        self._known_slow = False
        self._last_read_s = _SHORT_S

    def subscribe(self, listener: ReadListener) -> None:
        self._listeners += (listener,)
        if self._known_slow:
            listener.became_slow()

    def close(self) -> None:
        self._readers.close()
        self._beside.close()

    @property
    def is_slow(self) -> bool:
        """Whether reading the shared file system is mostly waiting, so that many reads should be in progress."""
        return self._source.is_slow

    @property
    def is_quick(self) -> bool:
        """Whether the last read was so short that a waiting thread may read the object itself."""
        return self._last_read_s < _SHORT_S

    def claim(self, keys: Iterable[bytes]) -> list[Flight]:
        """Return flights for the objects that this node must read, does not have, and is not fetching yet.

        The caller ends them with `read_run`.
        """
        claimed = []
        for key in keys:
            if key in self._arrivals.store or self._arrivals.routes.of(key):
                continue
            flight = self._arrivals.flights.claim(key)
            # It may have arrived between the lookup and the flight.
            if flight is not None and not self._arrivals.finish_held(flight):
                claimed.append(flight)
        return claimed

    def submit(self, flight: Flight) -> None:
        """Run `read` on a thread that reads the shared file system."""
        self._submit(self._readers, [flight], alone=True)

    def submit_run(self, run: Sequence[Flight]) -> None:
        """Run `read_run` on a thread that reads the shared file system."""
        self._submit(self._readers, run)

    def read(self, flight: Flight) -> None:
        """Read one object, and then its neighbours."""
        if flight.done:
            return
        STAGES.add("queue for a reader", flight.began)
        self.read_run([flight])
        key = flight.key
        if key in self._arrivals.store and key[0] == CHUNK and not flight.route and self._config.sparse:
            self._read_neighbours(key)

    def read_run(self, run: Sequence[Flight]) -> None:
        """Read neighbouring chunks of one file at once, or one directory, and end their flights."""
        try:
            self._read_run(run)
        except BadKeyError as error:
            self._fail(run, OSError(errno.EINVAL, str(error)))
        except OSError as error:
            self._fail(run, error)
        except Exception as error:
            log.exception("flight failed")
            self._fail(run, OSError(errno.EIO, repr(error)))

    def landed_from_pack(self, objects: Sequence[NamedObject], data: memoryview) -> None:
        """Accept verified objects that were read from the pack of the trace."""
        self._source.count(1, len(data))
        self._arrivals.read_here(objects, data)

    def _submit(self, pool: Pool, run: Sequence[Flight], *, alone: bool = False) -> None:
        try:
            pool.submit(lambda: self.read(run[0]) if alone else self.read_run(run))
        except RuntimeError:
            self._fail(run, OSError(errno.ESHUTDOWN, "the cache is stopping"))

    def _fail(self, run: Sequence[Flight], error: OSError) -> None:
        for flight in run:
            self._arrivals.finish(flight, FetchResult(error=error))

    def _read_run(self, run: Sequence[Flight]) -> None:
        began = perf_counter()
        key = run[0].key
        data = self._source.read_run(key, len(run)) if key[0] == CHUNK else self._source.read(key)
        now = STAGES.add("read folder" if key[0] == DIRECTORY else "read chunks", began)
        self._last_read_s = now - began
        if not self._known_slow and self._source.is_slow:
            self._known_slow = True
            self._readers.allow(_READERS_IF_SLOW)
            for listener in self._listeners:
                listener.became_slow()
        step = self._config.chunk_bytes
        parts = [data[place * step : (place + 1) * step] for place in range(len(run))] if len(run) > 1 else [data]
        objects = [(flight.key, digest(flight.key, part), len(part)) for flight, part in zip(run, parts)]
        STAGES.add("digest", now)
        self._arrivals.read_here(objects, data)
        own = [(flight.key, part) for flight, part in zip(run, parts) if not flight.route]
        for listener in self._listeners if own else ():
            listener.were_read(own)

    def _read_neighbours(self, key: bytes) -> None:
        """Read the neighbours of a requested chunk, after it and on other threads than requested objects."""
        index = chunk_index(key)
        beside = [sibling_key(key, number) for number in self._neighbours.of(key) if number != index]
        claimed = {flight.key: flight for flight in self.claim(beside)}
        found = runs(list(claimed), max(1, _RUN_BYTES // self._config.chunk_bytes))
        for run in sorted(found, key=lambda run: abs(chunk_index(run[0]) - index)):  # the nearest first
            self._submit(self._beside, [claimed[each] for each in run])
