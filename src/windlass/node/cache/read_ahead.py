"""Reading ahead without a trace: what a program does next follows from what it does.

- A program that imports one module of a package soon imports most of its neighbours. A folder that is looked into and
  has byte code makes the reader fetch the byte code's folder, and that one the byte code itself; on the import of torch
  this brings 1.3 files for each that is used. Folders with much byte code are left to demand.
- It also looks into most of the packages below: their listings and those of their byte code come too, and nothing of
  their content until somebody looks into them.
- A program that looks for entry points reads them of every distribution.
- A library that is opened is relocated before a line of it runs: its tables and its data are read from end to end, and
  so are those of the libraries that it needs (`elf`).

So an import finds things on the way instead of asking for each in turn, which is what costs the time.
"""

from __future__ import annotations

import contextlib
import posixpath
import stat
import threading
from collections.abc import Callable, Iterable, Sequence

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.elf import HEAD_BYTES as ELF_HEAD_BYTES
from windlass.node.cache.elf import Range, Segments, names_of, parse_dynamic, parse_segments, written
from windlass.node.cache.fetcher import Fetcher
from windlass.node.cache.keys import (
    DIRECTORY,
    HEAD_BYTES,
    chunk_count,
    chunk_index,
    chunk_key,
    directory_key,
    file_size,
    runs,
    sibling_key,
)
from windlass.node.cache.listing import Listing, attr_pin
from windlass.node.cache.store import Store
from windlass.node.wire.timers import Pool

_FOLDER = b"__pycache__"
_PACKAGE = b"__init__.py"
_METADATA = b".dist-info"
_MAX_BYTES = 4 << 20
_MAX_BELOW = 100
_MAX_LIBRARY_BYTES = 256 << 20
_MAX_EACH_BYTES = 32 << 20
_SMALL_LIBRARY_BYTES = 1 << 20
_THREADS = 4
_LISTERS = 2
_THREADS_IF_SLOW = 32
_RUN_BYTES = 1 << 20
_FILES_EACH = 4


def chunks_of(ranges: Iterable[Range], size: int, chunk_bytes: int) -> list[int]:
    """The chunks of a file in which ranges of it lie; what a damaged file says of its tables may be anything."""
    found: set[int] = set()
    for offset, length in ranges:
        found.update(range(offset // chunk_bytes, chunk_count(min(offset + length, size), chunk_bytes)))
    return sorted(found)


class ReadAhead:
    """Told of every object that this node read from the shared file system; asks for what will follow.

    Works on threads of its own: what somebody waits for must not queue behind what somebody may want.
    """

    def __init__(self, fetcher: Fetcher, store: Store, config: NodeConfig) -> None:
        self._fetcher = fetcher
        self._store = store
        self._chunk_bytes = config.chunk_bytes
        self._give_up_s = config.give_up_s
        self._askers = Pool(_THREADS, "ahead")
        # What nobody has looked into yet must not stand before what somebody has.
        self._listers = Pool(_LISTERS, "lister")
        fetcher.on_slow.append(lambda: self._askers.allow(_THREADS_IF_SLOW))
        fetcher.on_slow.append(lambda: self._listers.allow(_THREADS_IF_SLOW))
        self._lock = threading.Lock()
        self._not_looked_into: set[bytes] = set()
        self._libraries: set[bytes] = set()
        self._metadata: dict[bytes, int] = {}
        self._left = min(_MAX_LIBRARY_BYTES, config.budget_bytes // 4)

    def were_read(self, objects: Iterable[tuple[bytes, bytes | memoryview]]) -> None:
        for key, data in objects:
            if key[0] == DIRECTORY:
                path = key[HEAD_BYTES:]
                if path not in self._not_looked_into:
                    self._follow(path, Listing(bytes(data)))
            elif chunk_index(key) == 0 and data[:4] == b"\x7fELF":
                head = bytes(data[:ELF_HEAD_BYTES])
                self._submit(lambda key=key, head=head: self._load(key, head))  # type: ignore[misc]

    def looked_into(self, path: bytes) -> None:
        """A folder whose listing came unasked is used after all."""
        with self._lock:
            if path not in self._not_looked_into:
                return
            self._not_looked_into.discard(path)
        blob = self._store.read(directory_key(path))
        if blob is not None:
            self._follow(path, Listing(blob))

    def close(self) -> None:
        self._askers.close()
        self._listers.close()

    # Packages

    def _follow(self, path: bytes, listing: Listing) -> None:
        code = path.rstrip(b"/") + b"/" + _FOLDER
        if code in self._not_looked_into:
            self.looked_into(code)
        wanted = follow(path, listing, self._chunk_bytes)
        for start in range(0, len(wanted), _FILES_EACH):
            self._submit(lambda some=wanted[start : start + _FILES_EACH]: self._read(some))  # type: ignore[misc]
        for below in packages_below(path, listing):
            self._list_unasked(below, [_FOLDER])
        if path.endswith(_METADATA):
            self._follow_metadata(path)

    def _list_unasked(self, path: bytes, folders: Sequence[bytes] = (), files: Sequence[bytes] = ()) -> None:
        """Lists a folder that nobody has looked into, and those of `folders` in it; reads those of `files`."""
        with self._lock:
            self._not_looked_into.add(path)
        with contextlib.suppress(RuntimeError):  # the cache is stopping
            self._listers.submit(lambda: self._list_and_read(path, folders, files))

    def _list_and_read(self, path: bytes, folders: Sequence[bytes], files: Sequence[bytes]) -> None:
        self._read([directory_key(path)])
        listing = self._listing(path)
        for name in folders if listing is not None and listing.place(_PACKAGE) is not None else ():
            if listing is not None and listing.place(name) is not None and path in self._not_looked_into:
                self._list_unasked(path + b"/" + name)
        for name in files:
            place = listing.place(name) if listing is not None else None
            if listing is not None and place is not None and stat.S_ISREG(listing.mode_at(place)):
                pin = attr_pin(listing.attr_at(place))
                self._read([chunk_key(path + b"/" + name, pin, 0)] if pin.size else [])

    def _follow_metadata(self, path: bytes) -> None:
        """A program that looks into what a distribution says of itself, and into that of a second one, looks for
        entry points and goes through them all."""
        parent = path.rpartition(b"/")[0]
        with self._lock:
            self._metadata[parent] = self._metadata.get(parent, 0) + 1
            if self._metadata[parent] != 2:
                return
        listing = self._listing(parent)
        for name in listing.names if listing is not None else ():
            if name.endswith(_METADATA):
                self._list_unasked(parent + b"/" + name, files=[b"entry_points.txt"])

    def _read(self, keys: Sequence[bytes]) -> None:
        """Neighbouring chunks of a file in one piece, all else one by one."""
        for run in runs(keys, max(1, _RUN_BYTES // self._chunk_bytes)):
            flights = self._fetcher.claim(run)
            if len(flights) == len(run):
                self._fetcher.read_run(flights)
            else:  # another thread has some of them in hand
                for flight in flights:
                    self._fetcher.read_run([flight])

    # Libraries

    def _load(self, key: bytes, head: bytes) -> None:
        segments = parse_segments(head)
        with self._lock:
            is_new = key not in self._libraries
            self._libraries.add(key)
        if segments is None or not is_new:
            return
        if file_size(key) <= _SMALL_LIBRARY_BYTES:
            self._fetch(key, [(0, file_size(key))])
        self._fetch(key, written(segments))
        self._load_tables(key, segments)

    def _load_tables(self, key: bytes, segments: Segments) -> None:
        offset, length = segments.dynamic
        loading = parse_dynamic(segments, self._bytes(key, offset, length))
        self._fetch(key, loading.tables)
        needed, search = names_of(loading, lambda offset, length: self._bytes(key, offset, length))
        origin = posixpath.dirname(key[HEAD_BYTES:])
        folders = [folder.replace(b"${ORIGIN}", b"$ORIGIN").replace(b"$ORIGIN", origin) for folder in search]
        missing = set(needed)
        for folder in dict.fromkeys(posixpath.normpath(each) for each in folders if each.startswith(b"/")):
            if not missing:
                break
            listing = self._listing(folder)
            for name in [name for name in missing if listing is not None and listing.place(name) is not None]:
                missing.discard(name)
                self._open_library(folder, name, listing)

    def _open_library(self, folder: bytes, name: bytes, listing: Listing | None) -> None:
        """Its first chunk: when that is read, the rest follows as for any other."""
        for _ in range(4):  # names of versions point to each other
            place = listing.place(name) if listing is not None else None
            if listing is None or place is None:
                return
            if stat.S_ISREG(listing.mode_at(place)):
                pin = attr_pin(listing.attr_at(place))
                if pin.size:
                    key = chunk_key(folder + b"/" + name, pin, 0)
                    self._submit(lambda key=key: self._read([key]))  # type: ignore[misc]
                return
            name = listing.target_at(place)

    def _fetch(self, key: bytes, ranges: Iterable[Range]) -> None:
        """Ranges of a file, in runs, by several threads."""
        wanted = chunks_of(ranges, file_size(key), self._chunk_bytes)
        keys = [sibling_key(key, index) for index in wanted]
        if len(keys) * self._chunk_bytes > _MAX_EACH_BYTES:
            return
        with self._lock:
            self._left -= len(keys) * self._chunk_bytes
            if self._left < 0:
                return
        for run in runs(keys, max(1, _RUN_BYTES // self._chunk_bytes)):
            self._submit(lambda run=run: self._read(run))  # type: ignore[misc]

    def _bytes(self, key: bytes, offset: int, length: int) -> bytes:
        """Bytes of a file through its chunks, fewer where they cannot be had."""
        end = min(offset + length, file_size(key))
        found = b""
        while offset + len(found) < end:
            index, start = divmod(offset + len(found), self._chunk_bytes)
            data = self._object(sibling_key(key, index))
            if data is None or start >= len(data):
                break
            found += data[start : start + end - offset - len(found)]
        return found

    def _listing(self, path: bytes) -> Listing | None:
        data = self._object(directory_key(path))
        return Listing(data) if data is not None else None

    def _object(self, key: bytes) -> bytes | None:
        outcome = self._fetcher.wait(key, self._give_up_s)
        if outcome.error is not None:
            return None
        return outcome.data if outcome.data is not None else self._store.read(key)

    def _submit(self, job: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the cache is stopping
            self._askers.submit(job)


def follow(path: bytes, listing: Listing, chunk_bytes: int) -> list[bytes]:
    """Keys that are likely to be wanted after the folder `path` was."""
    is_source = not path.endswith(b"/" + _FOLDER)
    if is_source and listing.place(_FOLDER) is not None:
        return [directory_key(path.rstrip(b"/") + b"/" + _FOLDER)]
    if is_source and listing.place(_PACKAGE) is None:
        return []
    fits = _is_module if is_source else _is_code  # a package without byte code is compiled from its source
    pins = {name: attr_pin(listing.attr_at(place)) for place, name in enumerate(listing.names) if fits(name)}
    # Byte code of two interpreters: nobody knows yet which one is running.
    interpreters = {name.rsplit(b".", 2)[-2] for name in pins} if not is_source else set()
    if len(interpreters) > 1 or sum(pin.size for pin in pins.values()) > _MAX_BYTES:
        return []
    chunks = ((name, pin, range((pin.size + chunk_bytes - 1) // chunk_bytes)) for name, pin in pins.items())
    return [chunk_key(path + b"/" + name, pin, index) for name, pin, indices in chunks for index in indices]


def packages_below(path: bytes, listing: Listing) -> list[bytes]:
    """Folders of a package that may be packages themselves."""
    if listing.place(_PACKAGE) is None:
        return []
    folders = [name for place, name in enumerate(listing.names) if stat.S_ISDIR(listing.mode_at(place))]
    return [path + b"/" + name for name in folders if _is_module_name(name)][:_MAX_BELOW]


def _is_module_name(name: bytes) -> bool:
    return name != _FOLDER and name.isascii() and name.decode().isidentifier() and name not in _NOT_IMPORTED


_NOT_IMPORTED = frozenset({b"include", b"share", b"test", b"tests", b"lib", b"bin", b"docs", b"examples"})


def _is_module(name: bytes) -> bool:
    return name.endswith(b".py")


def _is_code(name: bytes) -> bool:
    return name.endswith(b".pyc") and name.count(b".") >= 2
