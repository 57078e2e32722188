"""The reader's end of a stream: turn a trace into objects of current versions and add objects read on demand."""

from __future__ import annotations

import logging
import stat
from collections import deque
from collections.abc import Iterator, Sequence

from windlass.node.cache.config import REPLICATE, NodeConfig
from windlass.node.cache.fetcher import Fetcher
from windlass.node.cache.flight import FetchResult, Landing
from windlass.node.cache.keys import CHUNK, DIRECTORY, MAX_CHUNK, NO_PIN, chunk_key, directory_key, runs, stripe_of
from windlass.node.cache.listing import Listing, attr_ctime_ns, attr_pin
from windlass.node.cache.pack_reader import PackReader
from windlass.node.cache.read_ahead import ReadAhead
from windlass.node.cache.store import Store
from windlass.node.cache.streamlog import StreamKey, StreamLog
from windlass.node.cache.trace import BadTraceError, Touch, Trace, read_trace

log = logging.getLogger("windlass.cache")
_AHEAD = 32
_AHEAD_IN_PACK = 512
_FOLDERS_AHEAD = 8
_FOLDERS_IF_SLOW = 64
_RUN_BYTES = 1 << 20


class Driver:
    """Fill the log of a stripe whose reader is this node."""

    def __init__(self, config: NodeConfig, fetcher: Fetcher, store: Store, stripe: int, mine: StreamLog) -> None:
        self._config = config
        self._fetcher = fetcher
        self._store = store
        self._stripe = stripe
        self._log = mine
        self._live = config.live and config.placement == REPLICATE
        self._live_left = min(config.live_limit_bytes, config.budget_bytes // 2)
        self._listing: tuple[bytes, Listing | None] = (b"", None)
        self._pack: PackReader | None = None
        self._read_ahead: ReadAhead | None = None
        if config.placement == REPLICATE and not config.trace_in:
            self._read_ahead = ReadAhead(fetcher, store, config)

    def run(self) -> None:
        """Push the planned part.

        Objects read on demand follow through `were_read`, from the threads that read them.
        """
        trace = _read_trace(self._config)
        stripes = self._config.stripes
        wanted = [w for w in self._wanted(trace) if stripe_of(_unpinned_key(*w), stripes) == self._stripe]
        self._log.start([_place(*w) for w in wanted])
        if wanted:
            self._pack = PackReader.open(self._config, self._fetcher)
        try:
            self._fill(wanted)
        finally:
            if self._pack is not None:
                self._pack.close()
        self._log.give_up_plan()
        if not self._live:
            self._log.close()

    def were_read(self, objects: Sequence[tuple[bytes, bytes | memoryview]]) -> None:
        """Offer objects that this node read on demand.

        In a job where all nodes start alike, all nodes will need them.
        """
        if self._read_ahead is not None:
            self._read_ahead.were_read(objects)
        if not self._live:
            return
        own = [(k, data) for k, data in objects if stripe_of(k, self._config.stripes) == self._stripe]
        self._live_left -= sum(len(data) for _, data in own)
        if self._live_left < 0:
            self._live = False
            if self._log.plan_over:
                self._log.close()
            return
        if own:
            self._log.offer(*(key for key, _ in own))

    def became_slow(self) -> None:
        if self._read_ahead is not None:
            self._read_ahead.became_slow()

    def looked_into(self, path: bytes) -> None:
        if self._read_ahead is not None:
            self._read_ahead.looked_into(path)

    def close(self) -> None:
        if self._read_ahead is not None:
            self._read_ahead.close()

    def _wanted(self, trace: Trace) -> Iterator[tuple[Touch, int]]:
        for touch in trace.touches:
            if touch.is_directory:
                yield touch, 0
                continue
            first = touch.offset // self._config.chunk_bytes
            last = (touch.offset + max(1, touch.length) - 1) // self._config.chunk_bytes
            for index in range(first, min(last, MAX_CHUNK) + 1):
                yield touch, index

    def _fill(self, wanted: list[tuple[Touch, int]]) -> None:
        """Read ahead with several requests in progress, and log in the order of the trace."""
        under_way: deque[tuple[bytes | None, Landing]] = deque()
        folders = deque(directory_key(touch.path) for touch, _ in wanted if touch.is_directory)
        left = len(folders)  # directories that have not been processed yet
        run_chunks = max(1, _RUN_BYTES // self._config.chunk_bytes)
        for unit in _units(wanted, run_chunks):
            if self._log.closed:
                return
            left -= unit[0][0].is_directory
            # The content of a directory is known only with its listing, so a few listings are fetched in advance.
            while folders and left - len(folders) < self._folders_ahead():
                self._fetcher.obtain(folders.popleft(), lambda outcome: None)
            under_way += self._begin(unit)
            most = _AHEAD_IN_PACK if self._pack is not None else _AHEAD * run_chunks
            while len(under_way) > most or (under_way and under_way[0][1].is_set()):
                self._log_first(under_way)
        while under_way and not self._log.closed:
            self._log_first(under_way)

    def _folders_ahead(self) -> int:
        """Return how many listings to fetch in advance.

        With a pack, no other requests are needed. The push waits only for listings.
        """
        return _FOLDERS_IF_SLOW if self._pack is not None or self._fetcher.reader.is_slow else _FOLDERS_AHEAD

    def _begin(self, unit: list[tuple[Touch, int]]) -> list[tuple[bytes | None, Landing]]:
        """Start fetching neighbouring objects.

        Objects of the pack are read together with their neighbours in the pack. The remaining objects are read in one
        read of their file, unless another thread already fetches them.
        """
        begun: list[tuple[bytes | None, Landing]] = []
        others: list[bytes] = []
        for touch, index in unit:
            key, ctime_ns = self._key_of(touch, index)
            landing = None
            if key is None:
                landing = Landing()
                landing(FetchResult(error=FileNotFoundError()))
            elif self._pack is not None and key[0] == CHUNK:
                landing = self._pack.begin(key, ctime_ns)
            if landing is None and key is not None:
                landing = Landing()
                others.append(key)
            assert landing is not None
            begun.append((key, landing))
        if others:
            self._begin_others(others, {key: landing for key, landing in begun if key is not None})
        return begun

    def _begin_others(self, keys: list[bytes], landings: dict[bytes, Landing]) -> None:
        claimed = {flight.key: flight for flight in self._fetcher.reader.claim(keys)}
        for key in keys:
            self._fetcher.obtain(key, landings[key])
        for run in runs(list(claimed), len(keys)):
            self._fetcher.reader.submit_run([claimed[key] for key in run])

    def _log_first(self, under_way: deque[tuple[bytes | None, Landing]]) -> None:
        """Log the first object and all objects that arrived after it, so that the children wake up only once."""
        if self._pack is not None and not under_way[0][1].is_set():
            self._pack.flush()
        came: list[bytes | None] = []
        while under_way and (not came or under_way[0][1].is_set()):
            key, landing = under_way.popleft()
            outcome = landing.wait(self._config.give_up_s)
            landed = outcome is not None and outcome.error is None and key is not None and key in self._store
            came.append(key if landed else None)
        self._log.add(*came)

    def _key_of(self, touch: Touch, index: int) -> tuple[bytes | None, int]:
        """Return the current key of a touch and the ctime of its file, from the current listing.

        The key is None if the file no longer exists.
        """
        if touch.is_directory:
            return directory_key(touch.path), 0
        parent, _, name = touch.path.rpartition(b"/")
        listing = self._listing_of(parent or b"/")
        place = listing.place(name) if listing is not None else None
        if listing is None or place is None or not stat.S_ISREG(listing.mode_at(place)):
            return None, 0
        attr = listing.attr_at(place)
        pin = attr_pin(attr)
        if index * self._config.chunk_bytes >= pin.size:
            return None, 0
        return chunk_key(touch.path, pin, index), attr_ctime_ns(attr)

    def _listing_of(self, path: bytes) -> Listing | None:
        if self._listing[0] != path:
            key = directory_key(path)
            if self._pack is not None and key not in self._store:
                self._pack.flush()  # the rest of the pack need not wait for the listing
            self._listing = path, self._fetch_listing(key)
        return self._listing[1]

    def _fetch_listing(self, key: bytes) -> Listing | None:
        outcome = self._fetcher.wait(key, self._config.give_up_s)
        if outcome.error is not None:
            return None
        if outcome.data is not None:
            return Listing(outcome.data)
        blob = self._store.read(key)
        return Listing(blob) if blob is not None else None


def _read_trace(config: NodeConfig) -> Trace:
    try:
        if config.trace_in:
            return read_trace(config.trace_in).within(config.trace_limit_bytes)
    except (OSError, BadTraceError) as error:
        log.warning("no trace is pushed: %s", error)
    return Trace("", (), ())


def _units(wanted: Sequence[tuple[Touch, int]], most: int) -> Iterator[list[tuple[Touch, int]]]:
    """Group contiguous chunks of a range, up to `most`. A directory is a group by itself."""
    unit: list[tuple[Touch, int]] = []
    for touch, index in wanted:
        if unit and (unit[-1] != (touch, index - 1) or len(unit) == most):
            yield unit
            unit = []
        unit.append((touch, index))
    if unit:
        yield unit


def _place(touch: Touch, index: int) -> StreamKey:
    return StreamKey(DIRECTORY if touch.is_directory else CHUNK, index.to_bytes(4, "little"), touch.path)


def _unpinned_key(touch: Touch, index: int) -> bytes:
    return directory_key(touch.path) if touch.is_directory else chunk_key(touch.path, NO_PIN, index)
