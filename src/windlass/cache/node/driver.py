"""The reader's end of a stream: turns a trace into objects of today's versions, and adds what is read on demand."""

from __future__ import annotations

import logging
import stat
from collections import deque
from collections.abc import Iterator, Sequence

from .config import REPLICATE, NodeConfig
from .fetcher import Fetcher
from .flight import FetchResult, Landing
from .keys import CHUNK, DIRECTORY, MAX_CHUNK, NO_PIN, chunk_key, directory_key, runs, stripe_of
from .listing import Listing, attr_pin
from .read_ahead import ReadAhead
from .store import Store
from .streamlog import StreamKey, StreamLog
from .trace import BadTraceError, Touch, Trace, read_trace

log = logging.getLogger("windlass.cache")
_AHEAD = 32
_FOLDERS_AHEAD = 8
_FOLDERS_IF_SLOW = 64
_RUN_BYTES = 1 << 20


class Driver:
    """Fills the log of a stripe whose reader this node is."""

    def __init__(self, config: NodeConfig, fetcher: Fetcher, store: Store, stripe: int, mine: StreamLog) -> None:
        self._config = config
        self._fetcher = fetcher
        self._store = store
        self._stripe = stripe
        self._log = mine
        self._live = config.live and config.placement == REPLICATE
        self._live_left = min(config.live_limit_bytes, config.budget_bytes // 2)
        self._listing: tuple[bytes, Listing | None] = (b"", None)
        self._read_ahead: ReadAhead | None = None
        if config.placement == REPLICATE and not config.trace_in:
            self._read_ahead = ReadAhead(fetcher, store, config)

    def run(self) -> None:
        """The planned part; what is read on demand follows through `were_read`, from the threads that read it."""
        trace = self._read_trace()
        stripes = self._config.stripes
        wanted = [w for w in self._wanted(trace) if stripe_of(_unpinned_key(*w), stripes) == self._stripe]
        self._log.start([_place(*w) for w in wanted])
        self._fill(wanted)
        self._log.give_up_plan()
        if not self._live:
            self._log.close()

    def were_read(self, objects: Sequence[tuple[bytes, bytes | memoryview]]) -> None:
        """This node read objects for somebody: in a job where all start alike, all will want them."""
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

    def looked_into(self, path: bytes) -> None:
        if self._read_ahead is not None:
            self._read_ahead.looked_into(path)

    def close(self) -> None:
        if self._read_ahead is not None:
            self._read_ahead.close()

    def _read_trace(self) -> Trace:
        try:
            if self._config.trace_in:
                return read_trace(self._config.trace_in).within(self._config.trace_limit_bytes)
        except (OSError, BadTraceError) as error:
            log.warning("no trace is pushed: %s", error)
        return Trace("", (), ())

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
        """Reads ahead with several requests under way, and logs in the order of the trace."""
        under_way: deque[list[tuple[bytes | None, Landing]]] = deque()
        folders = deque(directory_key(touch.path) for touch, _ in wanted if touch.is_directory)
        left = len(folders)  # those whose turn has not come
        for unit in _units(wanted, max(1, _RUN_BYTES // self._config.chunk_bytes)):
            if self._log.closed:
                return
            left -= unit[0][0].is_directory
            # What lies in a folder is known when its listing is there: a few are fetched before their turn.
            while folders and left - len(folders) < (_FOLDERS_IF_SLOW if self._fetcher.is_slow else _FOLDERS_AHEAD):
                self._fetcher.obtain(folders.popleft(), lambda outcome: None)
            under_way.append(self._begin([self._key_of(touch, index) for touch, index in unit]))
            while len(under_way) > _AHEAD or (under_way and all(landing.is_set() for _, landing in under_way[0])):
                self._log_first(under_way)
        while under_way and not self._log.closed:
            self._log_first(under_way)

    def _begin(self, keys: list[bytes | None]) -> list[tuple[bytes | None, Landing]]:
        """Starts to fetch neighbouring objects, those that nobody else fetches in one read."""
        known = [key for key in keys if key is not None]
        claimed = {flight.key: flight for flight in self._fetcher.claim(known)}
        unit = []
        for key in keys:
            landing = Landing()
            unit.append((key, landing))
            if key is None:
                landing(FetchResult(error=FileNotFoundError()))
            else:
                self._fetcher.obtain(key, landing)
        for run in runs(list(claimed), len(keys)):
            self._fetcher.submit_run([claimed[key] for key in run])
        return unit

    def _log_first(self, under_way: deque[list[tuple[bytes | None, Landing]]]) -> None:
        came: list[bytes | None] = []
        for key, landing in under_way.popleft():
            outcome = landing.wait(self._config.give_up_s)
            landed = outcome is not None and outcome.error is None and key is not None and key in self._store
            came.append(key if landed else None)
        self._log.add(*came)

    def _key_of(self, touch: Touch, index: int) -> bytes | None:
        """The key of today's version, from today's listing; None for what is no longer there."""
        if touch.is_directory:
            return directory_key(touch.path)
        parent, _, name = touch.path.rpartition(b"/")
        listing = self._listing_of(parent or b"/")
        place = listing.place(name) if listing is not None else None
        if listing is None or place is None or not stat.S_ISREG(listing.mode_at(place)):
            return None
        pin = attr_pin(listing.attr_at(place))
        if index * self._config.chunk_bytes >= pin.size:
            return None
        return chunk_key(touch.path, pin, index)

    def _listing_of(self, path: bytes) -> Listing | None:
        if self._listing[0] != path:
            self._listing = path, self._fetch_listing(directory_key(path))
        return self._listing[1]

    def _fetch_listing(self, key: bytes) -> Listing | None:
        outcome = self._fetcher.wait(key, self._config.give_up_s)
        if outcome.error is not None:
            return None
        if outcome.data is not None:
            return Listing(outcome.data)
        blob = self._store.read(key)
        return Listing(blob) if blob is not None else None


def _units(wanted: Sequence[tuple[Touch, int]], most: int) -> Iterator[list[tuple[Touch, int]]]:
    """Chunks of a range together, up to `most`; a folder by itself."""
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
