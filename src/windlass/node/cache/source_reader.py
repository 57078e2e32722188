"""Read objects of the shared file system for this node: on separate threads, neighbouring chunks in one read."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Protocol

from windlass.node.cache.arrivals import Arrivals, NamedObject
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.flight import FetchResult, Flight
from windlass.node.cache.keys import CHUNK, DIRECTORY, BadKeyError, chunk_index, digest, runs, sibling_key
from windlass.node.cache.neighbours import Neighbours
from windlass.node.cache.source import Source
from windlass.node.cache.stages import STAGES
from windlass.node.wire.timers import Pool

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
        self._source.count_pack(len(data))
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
        self._note_speed()
        step = self._config.chunk_bytes
        parts = [data[place * step : (place + 1) * step] for place in range(len(run))] if len(run) > 1 else [data]
        objects = [(flight.key, digest(flight.key, part), len(part)) for flight, part in zip(run, parts)]
        STAGES.add("digest", now)
        self._arrivals.read_here(objects, data)
        own = [(flight.key, part) for flight, part in zip(run, parts) if not flight.route]
        for listener in self._listeners if own else ():
            listener.were_read(own)

    def _note_speed(self) -> None:
        if self._known_slow or not self._source.is_slow:
            return
        self._known_slow = True
        self._readers.allow(_READERS_IF_SLOW)
        for listener in self._listeners:
            listener.became_slow()

    def _read_neighbours(self, key: bytes) -> None:
        """Read the neighbours of a requested chunk, after it and on other threads than requested objects."""
        index = chunk_index(key)
        beside = [sibling_key(key, number) for number in self._neighbours.of(key) if number != index]
        claimed = {flight.key: flight for flight in self.claim(beside)}
        found = runs(list(claimed), max(1, _RUN_BYTES // self._config.chunk_bytes))
        for run in sorted(found, key=lambda run: abs(chunk_index(run[0]) - index)):  # the nearest first
            self._submit(self._beside, [claimed[each] for each in run])
