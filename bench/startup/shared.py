"""A shared file system for measurements: a read-only pass-through that counts and can limit calls and bytes.

One mount is one client, like the client of one node. It caches directory names and pages that it has read, but sends a
request for every file lookup, like clients of parallel file systems. All clients of one `Pace` share the rates of the
servers. Run it as a program, once per client: `python bench/startup/shared.py SETTINGS`. It ends when its
standard input is closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import stat
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.node.cache.fuse import negotiate, statfs_reply
from windlass.node.cache.listing import folder_attr, pack_attr
from windlass.node.cache.mounting import mount, unmount
from windlass.node.sys.atomic import create_file
from windlass.node.sys.mounts import BENCH_SOURCE

_LOOKUP, _FORGET, _GETATTR, _READLINK, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 5, 14, 15, 17, 18
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 26, 27, 28, 29, 36, 42
_COUNTED = frozenset({_LOOKUP, _GETATTR, _READLINK, _OPEN, _READ, _OPENDIR, _READDIR})
_UNANSWERED = frozenset({_FORGET, _BATCH_FORGET, _INTERRUPT})
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ENTRY = struct.Struct("<QQQQII")
_ATTR_HEAD = struct.Struct("<QII")
_READ_IN = struct.Struct("<QQIIQII")
_OPEN_OUT = struct.Struct("<QII")
_DIRENT = struct.Struct("<QQII")
_KEEP_CACHE, _CACHE_DIR = 1 << 1, 1 << 3
_FOREVER_S = 1 << 31
# No message-free open, and no entries with attributes in directory reads. So every file lookup is a counted call.
_FLAGS = (1 << 0) | (1 << 18) | (1 << 22)
_SLOT = struct.Struct("<qqq")
_TIMES = struct.Struct("<dd")
_THREADS = 64  # as many concurrent calls as a real client has. Waiting calls cost nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The capacity of the servers of the shared file system for all clients together. Zero means no limit."""

    latency_s: float = 0.0
    calls_per_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def any(self) -> bool:
        return bool(self.latency_s or self.calls_per_s or self.bytes_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """One client. `exports` are directories by the name under which the mount shows them."""

    where: str
    exports: dict[str, str]
    counters: str
    pace: str
    limits: Limits


class Counters:
    """Calls and bytes of one client, in a file that the measuring process reads at the same time."""

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            create_file(path, _SLOT.pack(0, 0, 0))
        with Path(path).open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), _SLOT.size)
        self._lock = threading.Lock()

    def add(self, calls: int, size: int, spent_ns: int = 0) -> None:
        """Add calls and bytes. `spent_ns` is the CPU time of this program for the calls."""
        with self._lock:
            old_calls, old_bytes, old_ns = _SLOT.unpack_from(self._map)
            _SLOT.pack_into(self._map, 0, old_calls + calls, old_bytes + size, old_ns + spent_ns)

    def read(self) -> tuple[int, int, int]:
        """Return calls, bytes, and nanoseconds of CPU time."""
        calls, size, spent_ns = _SLOT.unpack_from(self._map)
        return calls, size, spent_ns


class Pace:
    """Limit calls and bytes per second of all clients together. The clients reserve their turns in a shared file."""

    def __init__(self, path: str, limits: Limits) -> None:
        self._limits = limits
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(self._fd).st_size < _TIMES.size:
            os.pwrite(self._fd, _TIMES.pack(0.0, 0.0), 0)
        self._lock = threading.Lock()

    def wait(self, size: int) -> None:
        limits = self._limits
        until = 0.0
        if limits.calls_per_s or limits.bytes_per_s:
            with self._lock:
                fcntl.lockf(self._fd, fcntl.LOCK_EX)
                now = time.monotonic()
                calls, data = _TIMES.unpack(os.pread(self._fd, _TIMES.size, 0))
                if limits.calls_per_s:
                    calls = max(calls, now) + 1.0 / limits.calls_per_s
                if limits.bytes_per_s and size:
                    data = max(data, now) + size / limits.bytes_per_s
                os.pwrite(self._fd, _TIMES.pack(calls, data), 0)
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
                until = max(calls, data if size else 0.0) - now
        pause = max(until, 0.0) + limits.latency_s
        if pause > 0:
            time.sleep(pause)


class Client:
    """Answer the kernel for one mount."""

    def __init__(self, settings: ClientSettings, device: int) -> None:
        self._device = device
        self._counters = Counters(settings.counters)
        self._pace = Pace(settings.pace, settings.limits) if settings.limits.any else None
        self._exports = {os.fsencode(name): os.fsencode(path) for name, path in settings.exports.items()}
        self._paths: dict[int, bytes] = {1: b""}
        self._idents: dict[bytes, int] = {b"": 1}
        self._lock = threading.Lock()
        self._listings: dict[int, list[tuple[bytes, int, int]]] = {}
        self._next = 1

    def serve(self, threads: int) -> None:
        """Block until the client is unmounted."""
        others = [threading.Thread(target=self._loop, daemon=True) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        self._loop()

    def _loop(self) -> None:
        request = bytearray(64 << 10)
        while True:
            try:
                size = os.readv(self._device, [request])
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return
            _, code, unique, ident, *_ = _IN.unpack_from(request)
            if code in _UNANSWERED:
                continue
            self._answer(code, unique, ident, bytes(request[40:size]))

    def _answer(self, code: int, unique: int, ident: int, body: bytes) -> None:
        data, number = b"", 0
        began = time.thread_time_ns()
        try:
            data = self._call(code, ident, body)
        except OSError as error:
            number = error.errno or errno.EIO
        if code in _COUNTED:
            moved = len(data) if code == _READ else 0
            self._counters.add(1, moved, time.thread_time_ns() - began)
            if self._pace is not None:
                self._pace.wait(moved)
        with contextlib.suppress(OSError):
            os.writev(self._device, [_OUT.pack(16 + len(data), -number, unique), data])

    def _call(self, code: int, ident: int, body: bytes) -> bytes:
        if code == _LOOKUP:
            return self._lookup(ident, body[:-1])
        if code == _READ:
            handle, offset, size, *_ = _READ_IN.unpack_from(body)
            return os.pread(handle, size, offset)
        if code == _GETATTR:
            return _ATTR_HEAD.pack(1, 0, 0) + self._attr(self._paths[ident])
        if code == _OPEN:
            if struct.unpack_from("<I", body)[0] & os.O_ACCMODE != os.O_RDONLY:
                raise OSError(errno.EROFS, "read-only")
            handle = os.open(self._real(self._paths[ident]), os.O_RDONLY | os.O_CLOEXEC)
            return _OPEN_OUT.pack(handle, _KEEP_CACHE, 0)
        if code == _RELEASE:
            os.close(struct.unpack_from("<Q", body)[0])
            return b""
        if code == _READLINK:
            return os.readlink(self._real(self._paths[ident]))
        if code == _OPENDIR:
            return self._opendir(self._paths[ident])
        if code == _READDIR:
            handle, offset, size, *_ = _READ_IN.unpack_from(body)
            return self._readdir(handle, offset, size)
        if code == _RELEASEDIR:
            self._listings.pop(struct.unpack_from("<Q", body)[0], None)
            return b""
        if code == _INIT:
            return negotiate(body, _FLAGS)[0]
        if code == _STATFS:
            return statfs_reply()
        raise OSError(errno.ENOSYS, "not needed")

    def _real(self, path: bytes) -> bytes:
        """Return the real path of a path in the mount. Raises `OSError` for a name that is not exported."""
        name, _, rest = path[1:].partition(b"/")
        base = self._exports.get(name)
        if base is None:
            raise FileNotFoundError(errno.ENOENT, "not exported")
        return base + b"/" + rest if rest else base

    def _attr(self, path: bytes) -> bytes:
        if not path:
            return folder_attr(1)
        status = os.stat(self._real(path)) if path.count(b"/") == 1 else os.lstat(self._real(path))
        return pack_attr(status)

    def _lookup(self, parent: int, name: bytes) -> bytes:
        path = self._paths[parent] + b"/" + name
        attr = self._attr(path)
        with self._lock:
            ident = self._idents.get(path)
            if ident is None:
                self._next += 1
                ident = self._idents[path] = self._next
                self._paths[ident] = path
        is_folder = stat.S_ISDIR(int.from_bytes(attr[60:64], "little"))
        return _ENTRY.pack(ident, 0, _FOREVER_S if is_folder else 0, 1, 0, 0) + attr

    def _opendir(self, path: bytes) -> bytes:
        names = list(self._exports) if not path else os.listdir(self._real(path))
        entries = [(name, index + 1, 0) for index, name in enumerate(names)]
        with self._lock:
            self._next += 1
            handle = self._next
            self._listings[handle] = entries
        return _OPEN_OUT.pack(handle, 0, 0)

    def _readdir(self, handle: int, offset: int, size: int) -> bytes:
        out, used = [], 0
        for name, place, kind in self._listings.get(handle, [])[offset:]:
            item = _DIRENT.pack(place, place, len(name), kind) + name
            item += bytes(-len(item) % 8)
            if used + len(item) > size:
                break
            out.append(item)
            used += len(item)
        return b"".join(out)


def settings_text(settings: ClientSettings) -> str:
    return json.dumps(asdict(settings))


def main(argv: list[str]) -> int:
    """Mount, print `ready`, serve until standard input ends, then unmount."""
    told = json.loads(argv[0])
    settings = ClientSettings(**{**told, "limits": Limits(**told["limits"])})
    device = mount(settings.where, BENCH_SOURCE, allow_other=False)
    try:
        client = Client(settings, device)
        threading.Thread(target=client.serve, args=(_THREADS,), daemon=True).start()
        os.stat(settings.where)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        unmount(settings.where)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
