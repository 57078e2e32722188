"""A directory as one value: every name with its attributes, and the targets of its symbolic links.

One value answers every later query about the directory, including "no such file", without a request. Attributes are in
the order of the kernel's `fuse_attr`, so a reply is a slice and not a conversion.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from typing import NamedTuple

from windlass.node.cache.keys import Pin

# ino size blocks atime mtime ctime | atimensec mtimensec ctimensec mode nlink uid gid rdev blksize flags
ATTR = struct.Struct("<6Q10I")
ATTR_BYTES = ATTR.size
_HEAD = struct.Struct("<4sIIII")
_MAGIC = b"WLD1"
_MODE_AT = 60
MAX_LISTING_BYTES = 256 << 20


class Entry(NamedTuple):
    name: bytes
    attr: bytes
    target: bytes | None


class BadListingError(ValueError):
    """Bytes that are not a listing."""


def pack_attr(status: os.stat_result, *, salt: int = 0, size: int | None = None) -> bytes:
    """Return the kernel attributes of a file. `salt` separates inode numbers of two file systems in one view."""
    mtime, mtime_rest = divmod(status.st_mtime_ns, 10**9)
    ctime, ctime_rest = divmod(status.st_ctime_ns, 10**9)
    mask = (1 << 64) - 1
    return ATTR.pack(
        (status.st_ino ^ salt) & mask,
        status.st_size if size is None else size,
        getattr(status, "st_blocks", (status.st_size + 511) // 512),
        mtime & mask,
        mtime & mask,
        ctime & mask,
        mtime_rest,
        mtime_rest,
        ctime_rest,
        status.st_mode,
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_rdev & 0xFFFFFFFF,
        # Programs use this as the size of one read. A larger value means fewer calls for `cp` and for buffered readers.
        128 << 10 if stat.S_ISREG(status.st_mode) else 4096,
        0,
    )


def folder_attr(ino: int) -> bytes:
    """Return the attributes of a directory that exists only in the view, above the declared roots."""
    mode = stat.S_IFDIR | 0o555
    return ATTR.pack(ino, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 2, os.getuid(), os.getgid(), 0, 4096, 0)


def attr_mode(attr: bytes) -> int:
    return int.from_bytes(attr[_MODE_AT : _MODE_AT + 4], "little")


def attr_pin(attr: bytes) -> Pin:
    ino, size, _, _, mtime, _, _, mtime_rest = struct.unpack_from("<6Q2I", attr)
    if mtime >> 63:
        mtime -= 1 << 64
    return Pin(size, mtime * 10**9 + mtime_rest, ino)


def attr_ctime_ns(attr: bytes) -> int:
    *_, ctime, _, _, ctime_rest = struct.unpack_from("<6Q3I", attr)
    return int((ctime - (1 << 64) if ctime >> 63 else ctime) * 10**9 + ctime_rest)


class Listing:
    """A parsed directory. Parsing only splits the names. All other work is done per query."""

    __slots__ = ("_blob", "_links", "_places", "attr", "names")

    def __init__(self, blob: bytes) -> None:
        if len(blob) < _HEAD.size + ATTR_BYTES:
            raise BadListingError("listing of %d bytes" % len(blob))
        magic, count, names_bytes, links_bytes, _ = _HEAD.unpack_from(blob)
        names_at = _HEAD.size + ATTR_BYTES * (count + 1)
        if magic != _MAGIC or names_at + names_bytes + links_bytes != len(blob):
            raise BadListingError("not a listing of this version")
        self._blob = blob
        self.attr = blob[_HEAD.size : _HEAD.size + ATTR_BYTES]
        self.names = blob[names_at : names_at + names_bytes].split(b"\0") if count else []
        if len(self.names) != count:
            raise BadListingError("%d names for %d entries" % (len(self.names), count))
        self._places: dict[bytes, int] | None = None
        self._links: dict[int, bytes] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def place(self, name: bytes) -> int | None:
        """Return the position of a name, or None if the file does not exist."""
        places = self._places
        if places is None:
            places = self._places = dict(zip(self.names, range(len(self.names))))
        return places.get(name)

    def attr_at(self, place: int) -> bytes:
        start = _HEAD.size + ATTR_BYTES * (place + 1)
        return self._blob[start : start + ATTR_BYTES]

    def mode_at(self, place: int) -> int:
        start = _HEAD.size + ATTR_BYTES * (place + 1) + _MODE_AT
        return int.from_bytes(self._blob[start : start + 4], "little")

    def target_at(self, place: int) -> bytes:
        """Return the text of the symbolic link at `place`, or an empty string if it is not a link."""
        if self._links is None:
            texts = self._blob[len(self._blob) - self._links_bytes() :].split(b"\0")
            places = [p for p in range(len(self.names)) if stat.S_ISLNK(self.mode_at(p))]
            self._links = dict(zip(places, texts))
        return self._links.get(place, b"")

    def _links_bytes(self) -> int:
        return int(_HEAD.unpack_from(self._blob)[3])

    def entries(self) -> Iterable[Entry]:
        for place, name in enumerate(self.names):
            is_link = stat.S_ISLNK(self.mode_at(place))
            yield Entry(name, self.attr_at(place), self.target_at(place) if is_link else None)


def pack_listing(attr: bytes, entries: Iterable[Entry]) -> bytes:
    """Return the serialized directory. Entries are sorted, so equal directories give equal bytes on every node."""
    ordered = sorted(entries)
    names = b"\0".join(entry.name for entry in ordered)
    links = b"\0".join(entry.target for entry in ordered if entry.target is not None)
    head = _HEAD.pack(_MAGIC, len(ordered), len(names), len(links), 0)
    return b"".join([head, attr, *(entry.attr for entry in ordered), names, links])
