"""Save the accesses of a run for the next run: its trace, and the pack of its content next to the trace.

Only the node with `trace_out` does this. It writes the pack when the run has touched nothing new for a while, or at the
end of the run. It keeps an existing pack that holds nearly all of the content.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.keys import CHUNK, chunk_length, directory_key, parse_key
from windlass.node.cache.listing import Listing, attr_ctime_ns, attr_pin
from windlass.node.cache.pack import (
    FRESH_S,
    BadPackError,
    PackObject,
    check_folder,
    drop_old_packs,
    open_pack,
    pack_path,
    write_pack,
)
from windlass.node.cache.store import Store
from windlass.node.cache.trace import BadTraceError, TouchRecorder, read_trace, write_trace
from windlass.node.wire.timers import Timers

log = logging.getLogger("windlass.cache")
_EVERY_S = 10.0
_AT_END_S = 5.0
_IN_BACKGROUND_S = 600.0
_STALE_PART = 8  # rewrite a pack that lacks more than this fraction (1/8) of the content


class TraceSaver:
    """Record every object that is read for the first time. `planned`: the keys that a push delivered, in order."""

    def __init__(self, config: NodeConfig, store: Store, planned: Callable[[], Iterable[bytes | None]]) -> None:
        self._config = config
        self._store = store
        self._planned = planned
        self._recorder = TouchRecorder(config.chunk_bytes, config.trace_limit_bytes)
        self._chunks: dict[bytes, None] = {}
        self._saved = 0
        self._packed = -1
        self._started_s = time.time()
        self.fresh_s = FRESH_S
        self._writing = threading.Lock()
        self._until = 0.0

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
        """Save everything that is not saved yet at the end of the run, and stop a packer that is still running."""
        self.save_trace()
        self._until = min(self._until, time.monotonic() + _AT_END_S)
        self.save_pack(_AT_END_S, patience_s=2 * _AT_END_S)

    def _sometimes(self, timers: Timers) -> None:
        if not self.save_trace() and self._recorder.changes != self._packed:
            with contextlib.suppress(RuntimeError):  # no thread available: try again at the next turn
                threading.Thread(target=self.save_pack, args=(_IN_BACKGROUND_S,), name="packer", daemon=True).start()
        timers.after(_EVERY_S, lambda: self._sometimes(timers))

    def save_trace(self) -> bool:
        """Write the trace if something new was touched. A failure only logs a warning and the job continues."""
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

    def save_pack(self, within_s: float, patience_s: float = 0.0) -> None:
        """Write the pack unless a nearly complete one exists. A failure only logs a warning and the job continues.

        `patience_s`: how long to wait for another thread that is writing it.
        """
        config = self._config
        if not config.trace_out or not config.pack_limit_bytes or not self._writing.acquire(timeout=patience_s):
            return
        try:
            if self._recorder.changes == self._packed:
                return
            self._packed = self._recorder.changes
            path = pack_path(config.trace_out)
            check_folder(path)
            keys = dict.fromkeys([*self._chunks, *(k for k in self._planned() if k is not None and k[0] == CHUNK)])
            ctimes = self._packable(keys)
            held = self._held_bytes(path, ctimes)
            if not self._is_worth(path, sum(map(self._size_of, ctimes)), held):
                return
            self._until = time.monotonic() + within_s
            write_pack(
                path, self._objects(ctimes), config.chunk_bytes, config.pack_limit_bytes, lambda: self._until, held
            )
            drop_old_packs(os.path.dirname(path) or ".", path)
        except (OSError, BadPackError) as error:
            log.warning("the content of the trace is not packed: %s", error)
        finally:
            self._writing.release()

    def _is_worth(self, path: str, wanted: int, held: int) -> bool:
        """Whether there is space for a pack, and no existing pack has most of its content."""
        place = os.statvfs(os.path.dirname(path) or ".")
        return 2 * wanted <= place.f_bavail * place.f_frsize and wanted - held > wanted // _STALE_PART

    def _held_bytes(self, path: str, ctimes: Mapping[bytes, int]) -> int:
        """Return how many bytes of these objects the existing pack can provide to the next start."""
        try:
            old = open_pack(path, self._config.chunk_bytes)
        except (OSError, BadPackError):
            return 0
        old.close()
        there = (key for key, ctime_ns in ctimes.items() if key in old.index and old.index[key].ctime_ns == ctime_ns)
        return sum(map(self._size_of, there))

    def _size_of(self, key: bytes) -> int:
        parsed = parse_key(key)
        return chunk_length(parsed.pin.size, self._config.chunk_bytes, parsed.chunk)

    def _packable(self, keys: Iterable[bytes]) -> dict[bytes, int]:
        """Return stored keys of files that did not change recently, up to the limit, with the ctimes of the files."""
        ctimes: dict[bytes, int | None] = {}
        newest_ns = int((self._started_s - self.fresh_s) * 1e9)
        found: dict[bytes, int] = {}
        left = self._config.pack_limit_bytes
        for key in keys:
            path = parse_key(key).path
            if path not in ctimes:
                ctimes[path] = self._ctime_of(key)
            ctime_ns = ctimes[path]
            if ctime_ns is not None and ctime_ns < newest_ns and key in self._store:
                left -= self._size_of(key)
                if left < 0:
                    break
                found[key] = ctime_ns
        return found

    def _objects(self, ctimes: Mapping[bytes, int]) -> Iterator[PackObject]:
        for key, ctime_ns in ctimes.items():
            held = self._store.hold(key)
            if held is not None:  # otherwise it was evicted in the meantime
                try:
                    yield PackObject(key, held.digest, ctime_ns, held.fd, held.offset, held.size)
                finally:
                    self._store.release(held)

    def _ctime_of(self, key: bytes) -> int | None:
        """Return the ctime from the listing that this run uses. Return None if it is gone or shows another version."""
        parsed = parse_key(key)
        parent, _, name = parsed.path.rpartition(b"/")
        blob = self._store.read(directory_key(parent or b"/"))
        listing = Listing(blob) if blob is not None else None
        place = listing.place(name) if listing is not None else None
        if listing is None or place is None or attr_pin(listing.attr_at(place)) != parsed.pin:
            return None
        return attr_ctime_ns(listing.attr_at(place))
