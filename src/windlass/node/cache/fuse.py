"""The kernel's FUSE protocol, read-only: a thin layer over `view.View`. No other file handles the protocol.

Four properties make it fast. Answers are valid forever (entries, attributes, "no such file"). Open and opendir need no
message if the kernel supports that. Directory reads return entries with attributes. The thread that read a request
answers hits. A miss never blocks that thread: the thread that brings the object finishes the request later.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
from collections.abc import Callable
from time import perf_counter

from windlass.node.cache.backend import Backend
from windlass.node.cache.mounting import MAX_READ, clone_device
from windlass.node.cache.stages import STAGES
from windlass.node.cache.view import Miss, Node, View, split_batch_forget

log = logging.getLogger("windlass.cache")

LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, STATFS = 1, 2, 3, 5, 14, 15, 17
RELEASE, GETXATTR, LISTXATTR, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 18, 22, 23, 25, 26, 27, 28, 29
ACCESS, INTERRUPT, DESTROY, IOCTL, BATCH_FORGET, READDIRPLUS = 34, 36, 38, 39, 42, 44
# setattr symlink mknod mkdir unlink rmdir rename link write fsync setxattr removexattr fsyncdir create fallocate
# rename2 copy_file_range syncfs tmpfile: all operations that change something.
_WRITES = (4, 6, 8, 9, 10, 11, 12, 13, 16, 20, 21, 24, 30, 35, 43, 45, 47, 50, 51)

ASYNC_READ = 1 << 0
DO_READDIRPLUS = 1 << 13
READDIRPLUS_AUTO = 1 << 14
NO_OPEN_SUPPORT = 1 << 17
PARALLEL_DIROPS = 1 << 18
MAX_PAGES = 1 << 22
CACHE_SYMLINKS = 1 << 23
NO_OPENDIR_SUPPORT = 1 << 24
EXPLICIT_INVAL_DATA = 1 << 25
_WANTED = (
    ASYNC_READ
    | DO_READDIRPLUS
    | READDIRPLUS_AUTO
    | NO_OPEN_SUPPORT
    | PARALLEL_DIROPS
    | MAX_PAGES
    | CACHE_SYMLINKS
    | NO_OPENDIR_SUPPORT
    | EXPLICIT_INVAL_DATA
)

_STAGE_NAMES = {LOOKUP: "lookup", READ: "read", READDIR: "list", READDIRPLUS: "list", IOCTL: "ioctl"}

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_READ_IN = struct.Struct("<QQIIQII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
_OPEN_OUT = struct.Struct("<QII")
_STATFS_OUT = struct.Struct("<5Q3I28x")
_KEEP_CACHE, _CACHE_DIR = 1 << 1, 1 << 3
_REQUEST_BYTES = 64 << 10
_TRIES = 4
_NOTIFY_STORE = 4
_OWN = threading.local()  # a buffer for each thread that finishes late reads


def negotiate(body: bytes, mask: int, readahead_bytes: int = MAX_READ) -> tuple[bytes, int]:
    """Return the reply to INIT and the negotiated flags.

    `mask` removes flags, as an older kernel would. `readahead_bytes` is the maximum that the kernel reads around an
    access. Raises `OSError(EPROTO)` for a kernel whose protocol is too old for 64-byte dates and attributes (before
    7.12).
    """
    major, minor, readahead, offered = struct.unpack_from("<IIII", body)
    if (major, minor) < (7, 12):
        raise OSError(errno.EPROTO, "the kernel speaks FUSE %d.%d" % (major, minor))
    flags = offered & _WANTED & mask
    pages = MAX_READ // 4096 if flags & MAX_PAGES else 0
    answer = _INIT_OUT.pack(7, min(minor, 31), min(readahead, readahead_bytes), flags, 64, 48, 4096, 1, pages, 0, 0)
    return (answer if minor >= 23 else answer[:24]), flags


def statfs_reply() -> bytes:
    """Report a full, read-only file system of plausible size, as `df` shows for an image."""
    blocks = 1 << 28
    return _STATFS_OUT.pack(blocks, 0, 0, 1 << 28, 0, 4096, 255, 4096)


class Server:
    """Answer the kernel on a mounted device until it is unmounted."""

    def __init__(
        self, view: View, backend: Backend, device: int, flags_mask: int, readahead_bytes: int = MAX_READ
    ) -> None:
        self._view = view
        self._readahead_bytes = readahead_bytes
        self.backend = backend
        self._device = device
        self._mask = flags_mask
        self._lock = threading.Lock()
        self._late: dict[int, _Late] = {}
        self.flags = 0
        self.requests: dict[int, int] = {}
        self.ready = threading.Event()
        view.on_touch = backend.touched
        table: dict[int, Callable[[int, bytes, memoryview], bytes | memoryview | None]] = {
            LOOKUP: lambda ident, body, buffer: view.lookup(ident, body[:-1]),
            GETATTR: lambda ident, body, buffer: view.getattr(ident),
            READLINK: lambda ident, body, buffer: view.readlink(ident),
            READ: self._read,
            READDIR: lambda ident, body, buffer: _names(view, ident, body, plus=False),
            READDIRPLUS: lambda ident, body, buffer: _names(view, ident, body, plus=True),
            STATFS: lambda ident, body, buffer: statfs_reply(),
            INIT: self._init,
            OPEN: self._open,
            OPENDIR: self._opendir,
            **dict.fromkeys((RELEASE, RELEASEDIR, ACCESS, DESTROY), lambda ident, body, buffer: b""),
        }
        self._table = table
        self._refusals = dict.fromkeys(_WRITES, errno.EROFS)
        self._refusals[IOCTL] = errno.ENOTTY

    def serve(self, threads: int) -> None:
        """Block until the file system is unmounted or its connection is aborted."""
        # INIT must be answered before the device can be cloned.
        self._loop(self._device, until_init=True)
        others = []
        for _ in range(threads - 1):
            device = clone_device(self._device)
            thread = threading.Thread(target=self._loop, args=(device,), name="fuse", daemon=True)
            thread.start()
            others.append(thread)
        self._loop(self._device)
        for thread in others:
            thread.join(1.0)

    def _loop(self, device: int, *, until_init: bool = False) -> None:
        request = bytearray(_REQUEST_BYTES)
        view = memoryview(request)
        buffers = [request]
        buffer = memoryview(bytearray(MAX_READ))
        unpack, handle, requests, readv = _IN.unpack_from, self._handle, self.requests, os.readv
        while True:
            try:
                size = readv(device, buffers)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                if error.errno in (errno.ENODEV, errno.ECONNABORTED):
                    return
                raise
            _, code, unique, ident, *_ = unpack(request)
            requests[code] = requests.get(code, 0) + 1
            handle(device, code, unique, ident, bytes(view[40:size]), buffer)
            if until_init and code == INIT:
                self.ready.set()
                return
            if code == DESTROY:
                return

    def _handle(self, device: int, code: int, unique: int, ident: int, body: bytes, buffer: memoryview) -> None:
        began = perf_counter()
        call = self._table.get(code)
        if call is None:
            self._unanswered(device, code, unique, ident, body)
            STAGES.add(_STAGE_NAMES.get(code, "other request"), began)
            return
        try:
            data = call(ident, body, buffer)
        except Miss as miss:
            _Late(self, device, code, unique, ident, body).fetch(miss.keys)
            return
        except OSError as error:
            self._reply(device, unique, b"", error.errno or errno.EIO)
            return
        except Exception:
            log.exception("request %d failed", code)
            self._reply(device, unique, b"", errno.EIO)
            return
        if data is not None:
            self._reply(device, unique, data, 0)
        STAGES.add(_STAGE_NAMES.get(code, "other request"), began)

    def _reply(self, device: int, unique: int, data: bytes | memoryview, error: int) -> None:
        try:
            os.writev(device, [_OUT.pack(16 + len(data), -error, unique), data])
        except OSError as failure:
            # ENOENT: the request was interrupted in the meantime. ENODEV: unmounted.
            if failure.errno not in (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED):
                log.warning("reply failed: %s", failure)

    def _unanswered(self, device: int, code: int, unique: int, ident: int, body: bytes) -> None:
        """Handle requests without a reply, and refuse all others."""
        if code == FORGET:
            self._view.forget(ident, struct.unpack_from("<Q", body)[0])
        elif code == BATCH_FORGET:
            for forgotten, count in split_batch_forget(body):
                self._view.forget(forgotten, count)
        elif code == INTERRUPT:
            late = self._late.get(struct.unpack_from("<Q", body)[0])
            if late is not None:
                late.interrupt()
        else:
            self._reply(device, unique, b"", self._refusals.get(code, errno.ENOSYS))

    def store_pages(self, node: Node, offset: int, data: memoryview) -> None:
        """Put bytes of a file into the kernel's page cache.

        Never call this from a thread that answers requests, because it may wait for a page whose answer is due.
        """
        head = _OUT.pack(16 + 24 + len(data), _NOTIFY_STORE, 0)
        os.writev(self._device, [head, struct.pack("<QQII", node.id, offset, len(data), 0), data])

    # Handlers

    def _init(self, ident: int, body: bytes, buffer: memoryview) -> bytes:
        answer, self.flags = negotiate(body, self._mask, self._readahead_bytes)
        return answer

    def _read(self, ident: int, body: bytes, buffer: memoryview) -> memoryview:
        _, offset, size, *_ = _READ_IN.unpack_from(body)
        got = self._view.read(ident, offset, buffer[:size])
        return buffer[:got]

    def _open(self, ident: int, body: bytes, buffer: memoryview) -> bytes:
        if self.flags & NO_OPEN_SUPPORT:
            raise OSError(errno.ENOSYS, "open without a message")
        return _OPEN_OUT.pack(0, _KEEP_CACHE, 0)

    def _opendir(self, ident: int, body: bytes, buffer: memoryview) -> bytes:
        if self.flags & NO_OPENDIR_SUPPORT:
            raise OSError(errno.ENOSYS, "opendir without a message")
        return _OPEN_OUT.pack(0, _KEEP_CACHE | _CACHE_DIR, 0)


def _names(view: View, ident: int, body: bytes, *, plus: bool) -> bytes:
    _, offset, size, *_ = _READ_IN.unpack_from(body)
    return view.readdir(ident, offset, size, plus=plus)


class _Late:
    """A request that waits for objects. It ends once: answered, failed, or interrupted by the reader."""

    def __init__(self, server: Server, device: int, code: int, unique: int, ident: int, body: bytes) -> None:
        self._server = server
        self._device = device
        self._request = (code, unique, ident, body)
        self._lock = threading.Lock()
        self._left = 0
        self._tries = 0
        self._over = False
        self._began = self._came = perf_counter()
        self._is_read = code == READ
        server._late[unique] = self

    def fetch(self, keys: tuple[bytes, ...]) -> None:
        self._tries += 1
        self._left = len(keys)
        for key in keys:
            self._server.backend.fetch(key, self._arrived, again=self._tries > 1)

    def interrupt(self) -> None:
        self._end(b"", errno.EINTR)

    def _arrived(self, error: OSError | None) -> None:
        if error is not None:
            # A reader that began with a version that is gone gets an I/O error. The log contains the file and the
            # reason.
            number = errno.EIO if error.errno == errno.ESTALE else error.errno or errno.EIO
            self._end(b"", number)
            return
        with self._lock:
            self._left -= 1
            if self._left or self._over:
                return
        self._came = STAGES.add("miss: wait for the peer", self._began)
        self._again()

    def _again(self) -> None:
        code, _, ident, body = self._request
        buffer = getattr(_OWN, "buffer", None)
        if buffer is None:
            buffer = _OWN.buffer = memoryview(bytearray(MAX_READ))
        try:
            data = self._server._table[code](ident, body, buffer)
        except Miss as miss:
            if self._tries < _TRIES:
                self.fetch(miss.keys)
            else:
                self._end(b"", errno.EIO)
            return
        except OSError as error:
            self._end(b"", error.errno or errno.EIO)
            return
        except Exception:
            log.exception("request %d failed", code)
            self._end(b"", errno.EIO)
            return
        self._end(data or b"", 0)

    def _end(self, data: bytes | memoryview, error: int) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        unique = self._request[1]
        self._server._late.pop(unique, None)
        self._server._reply(self._device, unique, data, error)
        STAGES.add("miss: finish", self._came)
        STAGES.add("miss of a read" if self._is_read else "miss of a name", self._began)
