"""Read ahead without a trace: predict the next reads of a program from its current reads.

- A program that imports one module of a package soon imports most of the other modules. So when a program opens a
  directory with byte code, the reader fetches the byte code directory and then the byte code itself. For the import of
  torch this fetches 1.3 files for each file that is used. Directories with much byte code are read only on demand.
- Such a program also opens most of the packages below. Their listings and those of their byte code are fetched too.
  Their content is not fetched until a program opens them.
- A program that searches for entry points reads those of every distribution.

So an import finds objects in transit and does not request each in turn. These sequential requests are what costs time.
"""

from __future__ import annotations

import contextlib
import stat
import threading
from collections.abc import Callable, Iterable, Sequence

from windlass.node.cache.config import NodeConfig
from windlass.node.cache.fetcher import Fetcher
from windlass.node.cache.keys import (
    DIRECTORY,
    HEAD_BYTES,
    chunk_key,
    directory_key,
    runs,
)
from windlass.node.cache.listing import Listing, attr_pin
from windlass.node.cache.store import Store
from windlass.node.wire.timers import Pool

_FOLDER = b"__pycache__"
_PACKAGE = b"__init__.py"
_METADATA = b".dist-info"
_MAX_BYTES = 4 << 20
_MAX_BELOW = 100
_THREADS = 4
_LISTERS = 2
_THREADS_IF_SLOW = 32
_RUN_BYTES = 1 << 20
_FILES_EACH = 4


class ReadAhead:
    """Receive every object that this node read from the shared file system, and request the objects that will follow.

    Uses separate threads, so that speculative reads do not delay reads that a program waits for.
    """

    def __init__(self, fetcher: Fetcher, store: Store, config: NodeConfig) -> None:
        self._fetcher = fetcher
        self._store = store
        self._chunk_bytes = config.chunk_bytes
        self._give_up_s = config.give_up_s
        self._askers = Pool(_THREADS, "ahead")
        # Listings of unopened directories must not delay the content of opened ones.
        self._listers = Pool(_LISTERS, "lister")
        self._lock = threading.Lock()
        self._not_looked_into: set[bytes] = set()
        self._metadata: dict[bytes, int] = {}

    def were_read(self, objects: Iterable[tuple[bytes, bytes | memoryview]]) -> None:
        for key, data in objects:
            if key[0] == DIRECTORY:
                path = key[HEAD_BYTES:]
                if path not in self._not_looked_into:
                    self._follow(path, Listing(bytes(data)))

    def became_slow(self) -> None:
        """Allow many reads at a time, because reads are mostly waiting."""
        self._askers.allow(_THREADS_IF_SLOW)
        self._listers.allow(_THREADS_IF_SLOW)

    def looked_into(self, path: bytes) -> None:
        """Follow a prefetched directory when a program uses it."""
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
        """List a directory that no program has opened yet, and its `folders`. Read its `files`."""
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
        """Prefetch the entry points of all distributions once a program has opened the metadata of two.

        Such a program searches for entry points and reads all of them.
        """
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
        """Read neighbouring chunks of a file in one piece, and all other objects one by one."""
        for run in runs(keys, max(1, _RUN_BYTES // self._chunk_bytes)):
            flights = self._fetcher.reader.claim(run)
            if len(flights) == len(run):
                self._fetcher.reader.read_run(flights)
            else:  # another thread already fetches some of them
                for flight in flights:
                    self._fetcher.reader.read_run([flight])

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
    """Return the keys that a program is likely to need after the directory `path`."""
    is_source = not path.endswith(b"/" + _FOLDER)
    if is_source and listing.place(_FOLDER) is not None:
        return [directory_key(path.rstrip(b"/") + b"/" + _FOLDER)]
    if is_source and listing.place(_PACKAGE) is None:
        return []
    fits = _is_module if is_source else _is_code  # a package without byte code is compiled from its source
    pins = {name: attr_pin(listing.attr_at(place)) for place, name in enumerate(listing.names) if fits(name)}
    # With byte code of two interpreters, the running interpreter is not known yet.
    interpreters = {name.rsplit(b".", 2)[-2] for name in pins} if not is_source else set()
    if len(interpreters) > 1 or sum(pin.size for pin in pins.values()) > _MAX_BYTES:
        return []
    chunks = ((name, pin, range((pin.size + chunk_bytes - 1) // chunk_bytes)) for name, pin in pins.items())
    return [chunk_key(path + b"/" + name, pin, index) for name, pin, indices in chunks for index in indices]


def packages_below(path: bytes, listing: Listing) -> list[bytes]:
    """Return the directories of a package that may be packages themselves."""
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
