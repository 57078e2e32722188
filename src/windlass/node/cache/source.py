"""The reader of the shared file system. No other code of the cache accesses it.

It walks every path from the real directory of a declared root, component by component, and follows no symbolic link. So
no request can reach files outside the roots. Files are pinned: size, mtime and inode must equal those of the key before
and after each read. Otherwise the read fails with `ChangedError` and none of its bytes are used.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from windlass.node.cache.keys import CHUNK, DIRECTORY, BadKeyError, Pin, parse_key
from windlass.node.cache.listing import MAX_LISTING_BYTES, Entry, folder_attr, pack_attr, pack_listing
from windlass.node.cache.roots import Root, link_text, names_above, root_of
from windlass.node.cache.stages import STAGES

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPEN_FILES = 64
_OPEN_FOLDERS = 256
_LOOKERS = 8
_LOOKERS_IF_SLOW = 32
_LOOKS_EACH = 24  # on a fast shared file system, fewer names are not worth another thread
_SLOW_LOOK_S = 0.0004
_LOOKS_TO_JUDGE = 4


class ChangedError(OSError):
    """The file is not the version that was seen first."""

    def __init__(self, path: bytes) -> None:
        super().__init__(errno.ESTALE, "changed since it was first seen: %s" % os.fsdecode(path))


class Source:
    """Read listings and chunks under the declared roots, and count the calls and bytes on the shared file system."""

    def __init__(self, roots: Sequence[Root], chunk_bytes: int, *, sparse: bool = False) -> None:
        """`sparse`: large files are read at scattered offsets, like programs and libraries, and not sequentially."""
        self._roots = tuple(roots)
        self._sparse = sparse
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._folders: OrderedDict[bytes, _Held] = OrderedDict()
        self._files: OrderedDict[tuple[bytes, Pin], _Held] = OrderedDict()
        self._devices: dict[int, int] = {}
        self._mine = threading.local()
        self._executor: ThreadPoolExecutor | None = None
        self._looks: deque[float] = deque(maxlen=16)
        self.calls = 0
        self.bytes = 0

    def read(self, key: bytes) -> bytes | memoryview:
        """Return the bytes of an object, valid until this thread's next read.

        Raises `OSError` (with the errno for the reader) or `BadKeyError`.
        """
        parsed = parse_key(key)
        if parsed.kind == DIRECTORY:
            return self._listing(parsed.path)
        return self.read_run(key, 1)

    def read_run(self, key: bytes, count: int) -> memoryview:
        """Like `read`, for `count` chunks from that of `key`, in one read. Stops at the end of the file."""
        parsed = parse_key(key)
        assert parsed.kind == CHUNK
        begin = parsed.chunk * self._chunk_bytes
        want = min(count * self._chunk_bytes, parsed.pin.size - begin)
        if want <= 0:
            raise BadKeyError("chunk %d lies beyond the end of %r" % (parsed.chunk, parsed.path))
        return self._range(parsed.path, parsed.pin, begin, want)

    def close(self) -> None:
        with self._lock:
            held = [*self._folders.values(), *self._files.values()]
            self._folders.clear()
            self._files.clear()
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
        for item in held:
            item.release()

    def count(self, calls: int, data: int = 0) -> None:
        with self._lock:
            self.calls += calls
            self.bytes += data

    # Directories

    def _listing(self, path: bytes) -> bytes:
        root = root_of(path, self._roots)
        if root is None:
            return self._folder_above(path)
        began = perf_counter()
        folder = self._folder(path, root)
        began = STAGES.add("source: open folder", began)
        try:
            own = os.fstat(folder.fd)
            salt = self._salt(own.st_dev)
            # The position in a directory belongs to the descriptor. Two concurrent readers would each see only a part
            # of it.
            with folder.listing, os.scandir(folder.fd) as found:
                names = [os.fsencode(item.name) for item in found]
            began = STAGES.add("source: read names", began)
            entries = self._entries(folder.fd, path, names, salt)
            STAGES.add("source: stat names", began)
            self.count(3 + len(entries))
        finally:
            folder.release()
        blob = pack_listing(pack_attr(own, salt=salt), entries)
        if len(blob) > MAX_LISTING_BYTES:
            raise OSError(errno.EFBIG, "directory too large for the cache: %s" % os.fsdecode(path))
        return blob

    def _entries(self, fd: int, folder: bytes, names: list[bytes], salt: int) -> list[Entry]:
        """Stat many names in parallel. Each stat is a request to the shared file system and mostly waiting."""

        def look(part: list[bytes]) -> list[Entry]:
            began = perf_counter()
            entries = [self._entry(fd, folder, name, salt) for name in part]
            self._looks.append((perf_counter() - began) / max(1, len(part)))
            return [entry for entry in entries if entry is not None]

        parts = shares(names, is_slow=self.is_slow)
        if len(parts) < 2:
            return look(names)
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_LOOKERS_IF_SLOW, "look")
            executor = self._executor
        return [entry for found in executor.map(look, parts) for entry in found]

    @property
    def is_slow(self) -> bool:
        """Whether a call is mostly waiting.

        The fastest of the last calls decides. A busy processor makes some calls slow, a slow file system makes all
        calls slow.
        """
        looks = tuple(self._looks)
        return len(looks) >= _LOOKS_TO_JUDGE and min(looks) >= _SLOW_LOOK_S

    def _entry(self, fd: int, folder: bytes, name: bytes, salt: int) -> Entry | None:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISLNK(status.st_mode):
                return Entry(name, pack_attr(status, salt=salt), None)
            self.count(1)
            text = link_text(folder.rstrip(b"/") + b"/" + name, os.readlink(name, dir_fd=fd), self._roots)
        except FileNotFoundError:
            return None  # removed between the listing and the stat: treat it as if it had never existed
        return Entry(name, pack_attr(status, salt=salt, size=len(text)), text)

    def _folder_above(self, path: bytes) -> bytes:
        names = names_above(path, self._roots)
        if names is None:
            raise FileNotFoundError(errno.ENOENT, "outside the declared roots: %s" % os.fsdecode(path))
        entries = []
        for name, root in names.items():
            if root is None:
                entries.append(Entry(name, folder_attr(_folder_ino(path + b"/" + name)), None))
            else:
                status = os.stat(root.real)
                self.count(1)
                entries.append(Entry(name, pack_attr(status, salt=self._salt(status.st_dev)), None))
        return pack_listing(folder_attr(_folder_ino(path)), entries)

    def _salt(self, device: int) -> int:
        """Return zero for the first file system and another value for each further one.

        Inode numbers must not collide.
        """
        with self._lock:
            return self._devices.setdefault(device, len(self._devices)) << 56

    def _folder(self, path: bytes, root: Root) -> _Held:
        """Return a held descriptor of a directory below a root, without following any link."""
        with self._lock:
            held = self._folders.get(path)
            if held is not None:
                self._folders.move_to_end(path)
                return held.hold()
        if path == root.view:
            fd = os.open(root.real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            parent, _, name = path.rpartition(b"/")
            above = self._folder(parent or b"/", root)
            try:
                fd = os.open(name, _FOLDER_FLAGS, dir_fd=above.fd)
            finally:
                above.release()
        self.count(1)
        return _keep(self._folders, path, _Held(fd), _OPEN_FOLDERS, self._lock)

    # Files

    def _range(self, path: bytes, pin: Pin, begin: int, want: int) -> memoryview:
        # One buffer per thread, because new memory for every chunk would cost more than the copy into it.
        buffer = getattr(self._mine, "buffer", None)
        if buffer is None or len(buffer) < want:
            buffer = self._mine.buffer = memoryview(bytearray(max(want, self._chunk_bytes)))
        began = perf_counter()
        held = self._file(path, pin)
        began = STAGES.add("source: open file", began)
        try:
            got = 0
            while got < want:
                step = os.preadv(held.fd, [buffer[got:want]], begin + got)
                if step == 0:
                    break
                got += step
            after = os.fstat(held.fd)
            STAGES.add("source: read file", began)
            self.count(2, got)
            if got < want or not _is_pinned(after, pin):
                with self._lock:
                    changed = self._files.pop((path, pin), None)
                if changed is not None:
                    changed.release()
                raise ChangedError(path)
        finally:
            held.release()
        return buffer[:want]

    def _file(self, path: bytes, pin: Pin) -> _Held:
        with self._lock:
            held = self._files.get((path, pin))
            if held is not None:
                self._files.move_to_end((path, pin))
                return held.hold()
        fd = self._open_file(path)
        status = os.fstat(fd)
        self.count(2)
        if not stat.S_ISREG(status.st_mode) or not _is_pinned(status, pin):
            os.close(fd)
            raise ChangedError(path)
        held = _Held(fd)
        if pin.size <= self._chunk_bytes:
            return held  # one read finishes it, so there is no reason to keep it open
        if self._sparse:
            # The kernel would read ahead after every chunk, from the shared file system, although no program needs
            # these bytes.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return _keep(self._files, (path, pin), held, _OPEN_FILES, self._lock)

    def _open_file(self, path: bytes) -> int:
        root = root_of(path, self._roots)
        if root is None:
            raise FileNotFoundError(errno.ENOENT, "outside the declared roots: %s" % os.fsdecode(path))
        if path == root.view:
            return os.open(root.real, _FILE_FLAGS)
        parent, _, name = path.rpartition(b"/")
        folder = self._folder(parent or b"/", root)
        try:
            return os.open(name, _FILE_FLAGS, dir_fd=folder.fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                raise ChangedError(path) from error
            raise
        finally:
            folder.release()


def _is_pinned(status: os.stat_result, pin: Pin) -> bool:
    """Whether this is the version of the file that the key names."""
    return (
        status.st_size == pin.size
        and status.st_mtime_ns == pin.mtime_ns
        and (status.st_ino ^ pin.ino) & ((1 << 56) - 1) == 0
    )


def shares(names: list[bytes], *, is_slow: bool) -> list[list[bytes]]:
    """Split names for several threads, with few names each if a stat is mostly waiting."""
    least, threads = (1, _LOOKERS_IF_SLOW) if is_slow else (_LOOKS_EACH, _LOOKERS)
    step = max(least, -(-len(names) // threads))
    return [names[start : start + step] for start in range(0, len(names), step)]


class _Held:
    """A descriptor with a user count. Removal from the table must not close it while a reader uses it."""

    __slots__ = ("_users", "fd", "listing", "lock")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._users = 1
        self.lock = threading.Lock()
        self.listing = threading.Lock()

    def hold(self) -> _Held:
        with self.lock:
            self._users += 1
        return self

    def release(self) -> None:
        with self.lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self.fd)


def _keep(table: OrderedDict, name: object, held: _Held, limit: int, lock: threading.Lock) -> _Held:  # type: ignore[type-arg]
    """Put a descriptor into a table of limited size. Return it with one more hold, for the caller."""
    out = []
    with lock:
        other = table.get(name)
        if other is not None:
            out.append(held)
            held = other
        else:
            table[name] = held
        held.hold()
        while len(table) > limit:
            out.append(table.popitem(last=False)[1])
    for item in out:
        item.release()
    return held


def _folder_ino(path: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in path.strip(b"/"):
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return value | 1 << 63
