"""The pack: the content that a trace names, in one file next to the trace and in its order.

With a pack, the next start reads one file. A pack is never trusted about the current state of files. Its objects are
found by key, and a key contains the version of a file (size, mtime, inode). The key comes from the current listing. The
file's ctime must also equal the ctime at the time of packing. Objects that do not match are read from the file itself.
Every object is checked against its digest when it is read.

A user who can write a pack controls which code runs, like a user who can write the environment. So a pack is used only
if it and its directory belong to this user (or root) and no other user can write to them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from windlass.node.cache.keys import DIGEST_BYTES, MAX_KEY_BYTES
from windlass.node.sys.atomic import replacing

_MAGIC = b"windlass pack 2\n"
_HEAD = struct.Struct("<16sQ")  # magic, bytes of a chunk
_TAIL = struct.Struct("<QQ32s")  # start of the index, its length, its digest
_ENTRY = struct.Struct("<QIqH")  # offset, size, ctime of the file, length of the key
_MAX_INDEX_BYTES = 64 << 20
_ALL_PACKS_BYTES = 4 << 30
_SUFFIX, _TRACE_SUFFIX = ".pack", ".trace.json"
FRESH_S = 2.0
"""A file that changed this shortly before it was read may change again with the same timestamp."""


class PackedObject(NamedTuple):
    """The location of an object in a pack. `ctime_ns` is the ctime of its file when it was packed."""

    offset: int
    size: int
    ctime_ns: int
    digest: bytes


class PackObject(NamedTuple):
    """An object to pack. Its bytes are in `fd` at `offset`."""

    key: bytes
    digest: bytes
    ctime_ns: int
    fd: int
    offset: int
    size: int


class BadPackError(ValueError):
    """A file that is not a pack, or is not trusted."""


def pack_path(trace: str) -> str:
    """Return the path of the pack of a trace."""
    return (trace[: -len(_TRACE_SUFFIX)] if trace.endswith(_TRACE_SUFFIX) else trace) + _SUFFIX


class Pack:
    """An open pack. Reads are thread-safe."""

    def __init__(self, fd: int, index: dict[bytes, PackedObject]) -> None:
        self._fd = fd
        self.index = index

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target`. Raise `OSError` if the file is shorter than its index states."""
        got = 0
        while got < len(target):
            step = os.preadv(self._fd, [target[got:]], offset + got)
            if step == 0:
                raise OSError(errno.EIO, "the pack is cut off")
            got += step

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def check_folder(path: str) -> None:
    """Raise `BadPackError` if other users can write to the directory of a pack.

    Packs in such a directory are never used.
    """
    folder = os.path.dirname(path) or "."
    _check_owner(os.stat(folder), folder)


def open_pack(path: str, chunk_bytes: int) -> Pack:
    """Open a pack and read its index.

    Raises `BadPackError` for a file that is not a pack, that other users could have written, or whose chunks have
    another size. Raises `OSError` if it cannot be read.
    """
    check_folder(path)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadPackError("%s is no file" % path)
        _check_owner(status, path)
        return Pack(fd, _read_index(fd, status.st_size, chunk_bytes))
    except BaseException:
        os.close(fd)
        raise


def _check_owner(status: os.stat_result, path: str) -> None:
    if status.st_uid not in (os.getuid(), 0):
        raise BadPackError("%s belongs to another user" % path)
    if status.st_mode & 0o022:
        raise BadPackError("%s can be written by others (chmod go-w)" % path)


def _read_index(fd: int, size: int, chunk_bytes: int) -> dict[bytes, PackedObject]:
    if size < _HEAD.size + _TAIL.size:
        raise BadPackError("not a pack")
    magic, theirs = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
    if magic != _MAGIC:
        raise BadPackError("not a pack")
    if theirs != chunk_bytes:
        raise BadPackError("a pack with chunks of %d bytes, not %d" % (theirs, chunk_bytes))
    begin, length, stated = _TAIL.unpack(os.pread(fd, _TAIL.size, size - _TAIL.size))
    if length > _MAX_INDEX_BYTES or begin + length + _TAIL.size != size:
        raise BadPackError("not a pack, or cut off")
    data = os.pread(fd, length, begin)
    if hashlib.sha256(data).digest() != stated:
        raise BadPackError("a damaged pack")
    return _parse_index(data, begin)


def _parse_index(data: bytes, end: int) -> dict[bytes, PackedObject]:
    index: dict[bytes, PackedObject] = {}
    at = 0
    while at < len(data):
        key_at = at + _ENTRY.size + DIGEST_BYTES
        if key_at > len(data):
            raise BadPackError("a pack whose index is cut off")
        offset, size, ctime_ns, key_bytes = _ENTRY.unpack_from(data, at)
        if key_bytes > MAX_KEY_BYTES or key_at + key_bytes > len(data) or offset + size > end:
            raise BadPackError("a pack whose index makes no sense")
        index[data[key_at : key_at + key_bytes]] = PackedObject(
            offset, size, ctime_ns, data[key_at - DIGEST_BYTES : key_at]
        )
        at = key_at + key_bytes
    return index


class _KeepOldError(Exception):
    """The new pack holds less than the old one."""


def write_pack(
    path: str,
    objects: Iterable[PackObject],
    chunk_bytes: int,
    limit_bytes: int,
    deadline: Callable[[], float],
    more_than: int = 0,
) -> int:
    """Write objects to a new pack at `path`, in their order, and return how many were written.

    Stops at the limit and at the deadline (`monotonic`, which may move closer in the meantime). The next start reads
    the missing objects from their files. The old pack is kept on `OSError`, and if the deadline passes before more than
    `more_than` bytes are written.
    """
    kept = 0
    with contextlib.suppress(_KeepOldError), replacing(path) as file:
        fd = file.fileno()
        index, end, late = [], os.write(fd, _HEAD.pack(_MAGIC, chunk_bytes)), False
        for each in objects:
            late = time.monotonic() > deadline()
            if late or end + each.size > limit_bytes:
                break
            _copy(each, fd)
            entry = _ENTRY.pack(end, each.size, each.ctime_ns, len(each.key))
            index.append(entry + each.digest + each.key)
            end += each.size
        data = b"".join(index)
        _write_all(fd, data + _TAIL.pack(end, len(data), hashlib.sha256(data).digest()))
        if late and end - _HEAD.size <= more_than:
            raise _KeepOldError
        kept = len(index)
    return kept


def _copy(each: PackObject, fd: int) -> None:
    sent = 0
    while sent < each.size:
        step = os.sendfile(fd, each.fd, each.offset + sent, each.size - sent)
        if step == 0:
            raise OSError(errno.EIO, "stored object shrank")
        sent += step


def _write_all(fd: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.write(fd, data[done:])


def drop_old_packs(folder: str, keep: str, limit_bytes: int = _ALL_PACKS_BYTES) -> list[str]:
    """Remove packs until those of a directory fit the limit, the oldest first and never `keep`.

    Returns the removed paths. Also removes temporary files of writers that were killed an hour ago or earlier.
    """
    found: list[tuple[float, int, str]] = []
    gone = []
    for entry in os.scandir(folder):
        if entry.name.endswith(_SUFFIX):
            status = entry.stat(follow_symlinks=False)
            found.append((status.st_mtime, status.st_size, entry.path))
        elif _SUFFIX + "." in entry.name and time.time() - entry.stat(follow_symlinks=False).st_mtime > 3600.0:
            gone.append(entry.path)
    used = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if used > limit_bytes and path != keep:
            gone.append(path)
            used -= size
    for path in gone:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return gone


def checked(objects: Sequence[tuple[bytes, bytes, int]], data: memoryview) -> bool:
    """Whether all objects (key, digest, size), whose bytes are contiguous in `data`, match their digests."""
    at = 0
    for key, stated, size in objects:
        state = hashlib.sha256(key)
        state.update(data[at : at + size])
        if state.digest() != stated:
            return False
        at += size
    return True
