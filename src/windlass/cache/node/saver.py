"""Keeps what a run touched for the next one: its trace, and the pack of its content beside it.

Only the node that is told to (`trace_out`) does this. The pack is written once the run touches nothing new for a while,
or at its end; while the one that is there holds nearly all of it, it stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from .config import NodeConfig
from .keys import CHUNK, chunk_length, directory_key, parse_key
from .listing import Listing, attr_ctime_ns, attr_pin
from .pack import FRESH_S, BadPackError, PackObject, drop_old_packs, open_pack, pack_path, write_pack
from .store import Store
from .timers import Timers
from .trace import BadTraceError, Recorder, read_trace, write_trace

log = logging.getLogger("windlass.cache")
_EVERY_S = 10.0
_AT_END_S = 5.0
_IN_BACKGROUND_S = 600.0
_STALE_PART = 8  # a pack that lacks more than one part in so many is written anew


class TraceSaver:
    """Told of every object that is read for the first time. `planned`: the keys that a push brought, in order."""

    def __init__(self, config: NodeConfig, store: Store, planned: Callable[[], Iterable[bytes | None]]) -> None:
        self._config = config
        self._store = store
        self._planned = planned
        self._recorder = Recorder(config.chunk_bytes, config.trace_limit_bytes)
        self._chunks: dict[bytes, None] = {}
        self._saved = 0
        self._packed = -1
        self._started_s = time.time()
        self.fresh_s = FRESH_S
        self._writing = threading.Lock()

    def start(self, timers: Timers) -> None:
        if self._config.trace_out:
            timers.after(_EVERY_S, lambda: self._sometimes(timers))

    def touched(self, key: bytes) -> None:
        if not self._config.trace_out:
            return
        parsed = parse_key(key)
        if parsed.kind == CHUNK:
            self._recorder.chunk(parsed.path, parsed.chunk, parsed.pin.size)
            self._chunks[key] = None
        else:
            self._recorder.directory(parsed.path)

    def end(self) -> None:
        """The last word on this run: saves what is not saved yet."""
        self.save_trace()
        self.save_pack(_AT_END_S)

    def _sometimes(self, timers: Timers) -> None:
        if not self.save_trace() and self._recorder.changes != self._packed:
            with contextlib.suppress(RuntimeError):  # no thread to be had: at the next turn
                threading.Thread(target=self.save_pack, args=(_IN_BACKGROUND_S,), name="packer", daemon=True).start()
        timers.after(_EVERY_S, lambda: self._sometimes(timers))

    def save_trace(self) -> bool:
        """Writes the trace where something new was touched; a failure is a warning, the job goes on."""
        config = self._config
        if not config.trace_out or self._recorder.changes == self._saved:
            return False
        self._saved = self._recorder.changes
        before = None
        if config.trace_in:
            with contextlib.suppress(OSError, BadTraceError):
                before = read_trace(config.trace_in).within(config.trace_limit_bytes)
        try:
            identity = os.path.basename(config.trace_out).partition(".")[0]
            write_trace(config.trace_out, self._recorder.trace(identity, tuple(r.view for r in config.roots), before))
        except OSError as error:
            log.warning("trace not saved: %s", error)
        return True

    def save_pack(self, within_s: float) -> None:
        """Writes the pack where there is none that is nearly as good; a failure is a warning, the job goes on."""
        config = self._config
        if not config.trace_out or not config.pack_limit_bytes or not self._writing.acquire(blocking=False):
            return
        try:
            if self._recorder.changes == self._packed:
                return
            self._packed = self._recorder.changes
            path = pack_path(config.trace_out)
            keys = dict.fromkeys([*self._chunks, *(k for k in self._planned() if k is not None and k[0] == CHUNK)])
            if not self._is_worth(path, list(keys)):
                return
            write_pack(path, self._objects(keys), config.pack_limit_bytes, time.monotonic() + within_s)
            drop_old_packs(os.path.dirname(path) or ".", path)
        except OSError as error:
            log.warning("the content of the trace is not packed: %s", error)
        finally:
            self._writing.release()

    def _is_worth(self, path: str, keys: list[bytes]) -> bool:
        """Whether there is room for a pack, and none that has most of these objects."""
        sizes = {key: self._size_of(key) for key in keys}
        wanted = sum(sizes.values())
        place = os.statvfs(os.path.dirname(path) or ".")
        if not wanted or place.f_bavail * place.f_frsize < 2 * wanted:
            return False
        try:
            old = open_pack(path)
        except (OSError, BadPackError):
            return True
        old.close()
        return sum(size for key, size in sizes.items() if key not in old.index) > wanted // _STALE_PART

    def _size_of(self, key: bytes) -> int:
        parsed = parse_key(key)
        return chunk_length(parsed.pin.size, self._config.chunk_bytes, parsed.chunk)

    def _objects(self, keys: Iterable[bytes]) -> Iterator[PackObject]:
        """Those that are held, of files that did not change lately."""
        ctimes: dict[bytes, int | None] = {}
        newest_ns = int((self._started_s - self.fresh_s) * 1e9)
        for key in keys:
            path = parse_key(key).path
            if path not in ctimes:
                ctimes[path] = self._ctime_of(key)
            ctime_ns = ctimes[path]
            held = self._store.hold(key) if ctime_ns is not None and ctime_ns < newest_ns else None
            if held is not None and ctime_ns is not None:
                try:
                    yield PackObject(key, held.digest, ctime_ns, held.fd, held.offset, held.size)
                finally:
                    self._store.release(held)

    def _ctime_of(self, key: bytes) -> int | None:
        """By the listing that this run uses; None where it is gone or shows another version."""
        parsed = parse_key(key)
        parent, _, name = parsed.path.rpartition(b"/")
        blob = self._store.read(directory_key(parent or b"/"))
        listing = Listing(blob) if blob is not None else None
        place = listing.place(name) if listing is not None else None
        if listing is None or place is None or attr_pin(listing.attr_at(place)) != parsed.pin:
            return None
        return attr_ctime_ns(listing.attr_at(place))
