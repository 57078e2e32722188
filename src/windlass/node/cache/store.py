"""Objects kept on the node, one after the other in segments, within a byte budget.

A segment is anonymous memory, or a file if a directory was configured. The writer only appends to a segment. It evicts
a segment as a whole, the least used first. So a location stays valid as long as a process has the segment open, and the
writing and the reading process need no lock between them. Anonymous memory also means that a killed cache leaves
nothing behind. No memory is mapped, because a full file system would then be a crash instead of an error to handle.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from windlass.node.sys.folders import private_folder
from windlass.node.sys.memory import memory_left

_PLACE = struct.Struct("<IIQQI")
LOCATION_BYTES = _PLACE.size
_SEGMENT_BYTES = 8 << 20
_MAX_SEGMENTS = 512
_GROWING = 4
_MAX_PLACES = 200_000
_MEMORY_FOR_OTHERS = 256 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class Location(NamedTuple):
    """The location of an object: process and descriptor of the segment, its number, and the bytes in it."""

    pid: int
    fd: int
    segment: int
    offset: int
    size: int

    def pack(self) -> bytes:
        return _PLACE.pack(*self)


def parse_location(body: bytes | memoryview) -> Location:
    """Parse a location. Raise `ValueError` for other bytes."""
    if len(body) != LOCATION_BYTES:
        raise ValueError("place of %d bytes" % len(body))
    return Location(*_PLACE.unpack(body))


class _Segment:
    __slots__ = ("end", "evict_first", "fd", "gone", "keys", "number", "users")

    def __init__(self, number: int, fd: int, evict_first: bool) -> None:
        self.number = number
        self.fd = fd
        self.evict_first = evict_first
        self.end = 0
        self.keys: list[bytes] = []
        self.users = 0
        self.gone = False


class _Slot(threading.local):
    """Which of the growing segments a thread writes to."""

    def __init__(self, threads: Iterator[int], slots: int) -> None:
        self.number = next(threads) % slots


class HeldObject(NamedTuple):
    """An object that stays readable until it is released, even if its segment is evicted."""

    segment: _Segment
    offset: int
    size: int
    digest: bytes

    @property
    def fd(self) -> int:
        return self.segment.fd

    def read(self) -> bytes:
        return os.pread(self.segment.fd, self.size, self.offset)


class Store:
    """The writing side, in the peer process. Thread-safe. The budget may shrink (node full), but never grow."""

    def __init__(self, folder: str, budget_bytes: int) -> None:
        """`folder`: the directory for segment files, or an empty string for memory."""
        self.folder = folder
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.evicted = 0
        self.refused = 0
        self.on_gone: Callable[[int], None] = lambda number: None
        self._lock = threading.Lock()
        self._held: dict[bytes, HeldObject] = {}
        # Segments to evict first and segments of this node's own objects, least used first.
        self._segments: dict[bool, OrderedDict[int, _Segment]] = {True: OrderedDict(), False: OrderedDict()}
        # A few growing segments of each kind, because two threads that write to one segment wait for each other in the
        # kernel.
        self._growing: dict[tuple[bool, int], _Segment] = {}
        self._made = 0
        self._closed = False
        self._limit = min(_SEGMENT_BYTES, budget_bytes // 16) or 1
        if self._limit == _SEGMENT_BYTES:
            self._limit = max(_SEGMENT_BYTES, budget_bytes // _MAX_SEGMENTS)
        # A small budget has no space for several growing segments.
        self._slot = _Slot(itertools.count(), _GROWING if self._limit >= _SEGMENT_BYTES else 1)
        if folder:
            private_folder(folder)
            for left_over in os.listdir(folder):  # files of a peer process that died: their digests are lost
                os.unlink(os.path.join(folder, left_over))

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def digest_of(self, key: bytes) -> bytes | None:
        """Return the digest of a held object, or None. Counts as a use."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            self._segments[held.segment.evict_first].move_to_end(held.segment.number)
            return held.digest

    def place_of(self, key: bytes) -> Location | None:
        """Return the location for a reader in another process of this node."""
        held = self._held.get(key)
        if held is None:
            return None
        return Location(os.getpid(), held.segment.fd, held.segment.number, held.offset, held.size)

    def hold(self, key: bytes) -> HeldObject | None:
        """Return a held object. The caller must call `release`."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                held.segment.users += 1
            return held

    def release(self, held: HeldObject) -> None:
        with self._lock:
            _leave(held.segment)

    def read(self, key: bytes) -> bytes | None:
        held = self.hold(key)
        if held is None:
            return None
        try:
            return held.read()
        finally:
            self.release(held)

    def put(
        self, key: bytes, digest: bytes, data: bytes | bytearray | memoryview, *, evict_first: bool = False
    ) -> bool:
        """Store an object. Return False if it does not fit, which is never an error.

        With `evict_first` (another node owns the object) it is evicted before this node's own objects.
        """
        return key in self._held or self.put_run([(key, digest, len(data))], data, evict_first=evict_first)

    def put_run(
        self,
        objects: Sequence[tuple[bytes, bytes, int]],
        data: bytes | bytearray | memoryview,
        *,
        evict_first: bool = False,
    ) -> bool:
        """Store several objects (key, digest, size) whose bytes are contiguous in `data`, with one write.

        They are neighbours in the segment. Stores all or none. Objects that were held already stay where they are.
        """
        size = len(data)
        with self._lock:
            segment = self._room(size, evict_first)
            if segment is None:
                self.refused += 1
                return False
            offset = segment.end
            segment.end += size
            segment.users += 1
            self.used_bytes += size
        try:
            done = os.pwrite(segment.fd, data, offset)
            while done < size:
                done += os.pwrite(segment.fd, memoryview(data)[done:], offset + done)
        except OSError as error:
            with self._lock:
                self.refused += 1
                self._growing.pop((evict_first, self._slot.number), None)
                _leave(segment)
                if error.errno in _FULL:
                    self._shrink()
            return False
        with self._lock:
            _leave(segment)
            if segment.gone:
                return False
            for key, digest, length in objects:
                if key not in self._held:
                    segment.keys.append(key)
                    self._held[key] = HeldObject(segment, offset, length, digest)
                offset += length
        return True

    def close(self) -> None:
        """Empty the store."""
        with self._lock:
            self._closed = True
            self.budget_bytes = 0
            while self._give_up_oldest():
                pass

    def _room(self, size: int, evict_first: bool) -> _Segment | None:
        """Return a segment with space for `size` more bytes within the budget."""
        if size > self.budget_bytes or self._closed:
            return None
        while self.used_bytes + size > self.budget_bytes:
            if not self._give_up_oldest():
                return None
        slot = (evict_first, self._slot.number)
        segment = self._growing.get(slot)
        if segment is None or segment.gone or (segment.end and segment.end + size > self._limit):
            try:
                segment = self._growing[slot] = self._new_segment(evict_first, size)
            except OSError as error:  # out of memory or descriptors, or the directory is full: continue with less
                if error.errno in _FULL:
                    self._shrink()
                return None
        return segment

    def _new_segment(self, evict_first: bool, size: int) -> _Segment:
        if not self.folder and memory_left() < max(size, self._limit) + _MEMORY_FOR_OTHERS:
            # The kernel does not report an error when anonymous memory grows too large. It kills a process.
            raise OSError(errno.ENOMEM, "the node's memory is needed for other things")
        number = self._made = self._made + 1
        if self.folder:
            path = os.path.join(self.folder, str(number))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        else:
            fd = os.memfd_create(_memory_name(number), os.MFD_CLOEXEC)
        segment = self._segments[evict_first][number] = _Segment(number, fd, evict_first)
        return segment

    def _shrink(self) -> None:
        """Reduce the budget below the current use, because the memory or directory is full before the budget."""
        self.budget_bytes = max(0, min(self.budget_bytes, self.used_bytes) * 9 // 10)
        while self.used_bytes > self.budget_bytes and self._give_up_oldest():
            pass

    def _give_up_oldest(self) -> bool:
        """Evict objects of other nodes before this node's own. Return False if nothing remains."""
        segments = self._segments[True] or self._segments[False]
        if not segments:
            return False
        _, segment = segments.popitem(last=False)
        self.evicted += len(segment.keys)
        for key in segment.keys:
            self._held.pop(key, None)
        self.used_bytes -= segment.end
        segment.gone = True
        segment.users += 1
        _leave(segment)
        if self.folder:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, str(segment.number)))
        self.on_gone(segment.number)
        return True


def _leave(segment: _Segment) -> None:
    """Drop one use. The last user of a segment that is gone closes it."""
    segment.users -= 1
    if segment.gone and not segment.users:
        os.close(segment.fd)


def _memory_name(number: int) -> str:
    return "windlass-%d" % number


class _OpenFile:
    """A descriptor that is closed when the last thread has finished reading it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class StoreReader:
    """The reading side, in the mount process. It stores the locations that it received and owns no segment."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._places: dict[bytes, Location] = {}
        self._files: dict[tuple[int, int], _OpenFile] = {}
        self._gone: set[int] = set()
        self._lock = threading.Lock()

    def learn(self, key: bytes, place: Location) -> None:
        if place.segment in self._gone:
            return  # two messages of the writer crossed
        self._places[key] = place
        if len(self._places) > _MAX_PLACES:
            with self._lock:
                for old in list(self._places)[: _MAX_PLACES // 10]:
                    self._places.pop(old, None)

    def forget(self, segment: int) -> None:
        """Drop a segment that the writer evicted. Its memory is freed when the last reader has closed it."""
        self._gone.add(segment)
        with self._lock:
            for key, place in list(self._places.items()):  # copied in one step: readers change the table meanwhile
                if place.segment == segment:
                    self._places.pop(key, None)
            for name in [name for name in self._files if name[1] == segment]:
                self._files.pop(name, None)

    def read_into(self, key: bytes, offset: int, target: memoryview) -> int:
        """Copy bytes from `offset` of the object into `target`.

        Return their number, or -1 if the object is not held.
        """
        place = self._places.get(key)
        if place is None:
            return -1
        file = self._files.get((place.pid, place.segment)) or self._opened(place)
        if file is None:
            self._places.pop(key, None)
            return -1
        want = min(len(target), place.size - offset)
        if want <= 0:
            return 0
        return os.preadv(file.fd, [target[:want]], place.offset + offset)

    def read_run_into(self, keys: Sequence[bytes], target: memoryview) -> int:
        """Read objects that are contiguous in one segment. Return -1 if they are not, or if one is not held."""
        places = [self._places.get(key) for key in keys]
        first = places[0]
        end = first.offset if first is not None else 0
        for place in places:
            if first is None or place is None or place.segment != first.segment or place.pid != first.pid:
                return -1
            if place.offset != end:
                return -1
            end += place.size
        if first is None or end - first.offset > len(target):
            return -1
        file = self._files.get((first.pid, first.segment)) or self._opened(first)
        return os.preadv(file.fd, [target[: end - first.offset]], first.offset) if file is not None else -1

    def read(self, key: bytes) -> bytes | None:
        """Return a whole object, or None."""
        place = self._places.get(key)
        if place is None:
            return None
        data = bytearray(place.size)
        return bytes(data) if self.read_into(key, 0, memoryview(data)) == place.size else None

    def close(self) -> None:
        with self._lock:
            self._places.clear()
            self._files.clear()

    def _opened(self, place: Location) -> _OpenFile | None:
        try:
            file = _OpenFile(os.open(self._path(place), os.O_RDONLY | os.O_CLOEXEC))
            if not self._folder:
                # The writer may have evicted the segment, and its descriptor may be another file by now.
                name = os.readlink("/proc/self/fd/%d" % file.fd)
                if name != "/memfd:%s (deleted)" % _memory_name(place.segment):
                    return None
        except OSError:
            return None
        with self._lock:
            return self._files.setdefault((place.pid, place.segment), file)

    def _path(self, place: Location) -> str:
        if self._folder:
            return os.path.join(self._folder, str(place.segment))
        return "/proc/%d/fd/%d" % (place.pid, place.fd)
