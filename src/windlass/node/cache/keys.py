"""Keys of objects: bytes of one version of a file, or a directory.

A key is plain `bytes`, so it can be a dictionary key, be sent and be hashed without any conversion. The version of a
file (its pin) is part of the key, so bytes of two versions of a file never have the same key.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

DIRECTORY = 1
CHUNK = 2

_HEAD = struct.Struct("<BIQqQ")
HEAD_BYTES = _HEAD.size
MAX_PATH_BYTES = 4096
MAX_KEY_BYTES = HEAD_BYTES + MAX_PATH_BYTES
DIGEST_BYTES = 32
MAX_CHUNK = (1 << 32) - 1


class Pin(NamedTuple):
    """The attributes that distinguish versions of a file."""

    size: int
    mtime_ns: int
    ino: int


class Key(NamedTuple):
    kind: int
    chunk: int
    pin: Pin
    path: bytes


NO_PIN = Pin(0, 0, 0)


class BadKeyError(ValueError):
    """Bytes that are not a key, or a key that names something no view can hold."""


def directory_key(path: bytes) -> bytes:
    return _HEAD.pack(DIRECTORY, 0, 0, 0, 0) + path


def chunk_key(path: bytes, pin: Pin, index: int) -> bytes:
    return _HEAD.pack(CHUNK, index, pin.size, pin.mtime_ns, pin.ino) + path


def parse_key(key: bytes) -> Key:
    """Return the parts of a key. Raise `BadKeyError` unless it has a known kind and a clean absolute path."""
    if not HEAD_BYTES < len(key) <= MAX_KEY_BYTES:
        raise BadKeyError("key has %d bytes" % len(key))
    kind, index, size, mtime_ns, ino = _HEAD.unpack_from(key)
    if kind not in (DIRECTORY, CHUNK):
        raise BadKeyError("key of unknown kind %d" % kind)
    path = key[HEAD_BYTES:]
    check_path(path)
    return Key(kind, index, Pin(size, mtime_ns, ino), path)


def check_path(path: bytes) -> None:
    """Check that a path is absolute and has no NUL and no empty, `.` or `..` part.

    Joining such a path can never leave a root. Raises `BadKeyError` otherwise.
    """
    if path == b"/":
        return
    if not path.startswith(b"/") or b"\0" in path:
        raise BadKeyError("not an absolute path: %r" % path[:80])
    for part in path[1:].split(b"/"):
        if part in (b"", b".", b".."):
            raise BadKeyError("path is not clean: %r" % path[:80])
        if len(part) > 255:
            raise BadKeyError("name longer than 255 bytes in %r" % path[:80])


def digest(key: bytes, data: bytes | bytearray | memoryview) -> bytes:
    """Compute the digest of an object. The reader of the shared file system computes it.

    It covers the key, so the right bytes of the wrong chunk fail too.
    """
    state = hashlib.sha256(key)
    state.update(data)
    return state.digest()


def chunk_count(size: int, chunk_bytes: int) -> int:
    return (size + chunk_bytes - 1) // chunk_bytes


def chunk_length(size: int, chunk_bytes: int, index: int) -> int:
    """Return the bytes of chunk `index` of a file of `size`, or 0 beyond its end."""
    return max(0, min(chunk_bytes, size - index * chunk_bytes))


def sibling_key(key: bytes, index: int) -> bytes:
    """Return the key of another chunk of the same version of the same file."""
    return key[:1] + index.to_bytes(4, "little") + key[5:]


def chunk_index(key: bytes) -> int:
    return int.from_bytes(key[1:5], "little")


def file_size(key: bytes) -> int:
    """Return the size of the file of a chunk."""
    return int.from_bytes(key[5:13], "little")


def runs(keys: Sequence[bytes], most: int) -> list[list[bytes]]:
    """Group neighbouring chunks of one file, up to `most`. The order is kept."""
    found: list[list[bytes]] = []
    for key in keys:
        if found and len(found[-1]) < most and _follows(found[-1][-1], key):
            found[-1].append(key)
        else:
            found.append([key])
    return found


def _follows(key: bytes, later: bytes) -> bool:
    return key[0] == CHUNK and sibling_key(key, chunk_index(key) + 1) == later


def stripe_of(key: bytes, stripes: int) -> int:
    """Return the stripe (the reader of the shared file system) of an object. The version of a file has no influence.

    Runs of eight chunks stay together. So all readers share one large file, without a seek at every chunk.
    """
    if stripes == 1:
        return 0
    spread = int.from_bytes(hashlib.sha256(key[HEAD_BYTES:]).digest()[:8], "little")
    return (spread + int.from_bytes(key[1:5], "little") // 8) % stripes
