"""The read-only view as plain calls: answer the kernel from local objects.

There is no FUSE and no network here. A call that needs an object that is not local raises `Miss` with its keys. The
caller fetches them and calls again. So the complete behaviour of the file system is tested without a mount.
"""

from __future__ import annotations

import errno
import itertools
import stat
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from windlass.node.cache.keys import Pin, chunk_key, directory_key
from windlass.node.cache.listing import Listing, attr_mode, attr_pin, folder_attr

FOREVER_S = 1 << 31
ROOT_ID = 1
# nodeid generation entry_valid attr_valid entry_valid_nsec attr_valid_nsec
ENTRY = struct.Struct("<QQQQII")
_ATTR_HEAD = struct.Struct("<QII").pack(FOREVER_S, 0, 0)
_DIRENT = struct.Struct("<QQII")
NO_SUCH_FILE = ENTRY.pack(0, 0, FOREVER_S, 0, 0, 0) + bytes(88)
_AHEAD_AFTER = 3  # sequential steps before a prefetch, because the loader's short runs are not worth it
_AHEAD_START = 2


class Miss(Exception):  # noqa: N818 - not an error: the ordinary way to say what has to be fetched
    """Objects that must be fetched before the call can be answered."""

    def __init__(self, *keys: bytes) -> None:
        super().__init__(len(keys))
        self.keys = keys


class LocalObjects(Protocol):
    """The objects on this node. Never blocks on the network."""

    def listing(self, path: bytes) -> Listing | None: ...

    def read_into(self, key: bytes, offset: int, target: memoryview) -> int:
        """Return the number of copied bytes, or -1 if the object is not here."""

    def will_want(self, key: bytes, count: int) -> None:
        """Hint that `count` chunks from this key will be read soon."""


class Node:
    """A name known to the kernel. Hard links are separate nodes with the same inode number."""

    __slots__ = ("ahead", "attr", "entry", "id", "key", "last", "lookups", "path", "pin", "run", "target")

    def __init__(self, ident: int, path: bytes, attr: bytes, target: bytes, key: tuple[int, bytes]) -> None:
        self.id = ident
        self.path = path
        self.attr = attr
        self.target = target
        self.key = key
        self.lookups = 0
        self.entry = ENTRY.pack(ident, 0, FOREVER_S, FOREVER_S, 0, 0) + attr
        self.pin: Pin | None = None
        self.last = -1
        self.run = 0
        self.ahead = 0


class View:
    """All calls are thread-safe and return bytes in the kernel's format, or raise `OSError` or `Miss`."""

    def __init__(self, local: LocalObjects, chunk_bytes: int, ahead_most: int = 64) -> None:
        """`ahead_most`: maximum number of chunks to prefetch for a sequential reader."""
        self._local = local
        self._chunk_bytes = chunk_bytes
        self._ahead_most = ahead_most
        self._lock = threading.Lock()
        self._ids = itertools.count(ROOT_ID)
        self._by_name: dict[tuple[int, bytes], Node] = {}
        self._nodes: dict[int, Node] = {}
        self.on_touch: Callable[[bytes], None] = lambda key: None
        self._new_node((0, b"/"), b"/", folder_attr(ROOT_ID), b"").lookups = 1

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, ident: int) -> Node:
        try:
            return self._nodes[ident]
        except KeyError:
            raise OSError(errno.ESTALE, "unknown node %d" % ident) from None

    def known(self, path: bytes) -> Node | None:
        """Return the node of a path if the kernel already has it."""
        node = self._nodes[ROOT_ID]
        for name in path[1:].split(b"/"):
            found = self._by_name.get((node.id, name))
            if found is None:
                return None
            node = found
        return node

    def lookup(self, parent: int, name: bytes) -> bytes:
        """Return the kernel's entry for a name, or its "no such file". Both are valid forever."""
        node = self._by_name.get((parent, name))
        if node is None:
            folder = self.node(parent)
            listing = self._listing(folder.path)
            place = listing.place(name)
            if place is None:
                return NO_SUCH_FILE
            node = self._child(folder, listing, place)
        with self._lock:
            node.lookups += 1
        return node.entry

    def forget(self, ident: int, lookups: int) -> None:
        with self._lock:
            node = self._nodes.get(ident)
            if node is None or ident == ROOT_ID:
                return
            node.lookups -= lookups
            if node.lookups <= 0:
                del self._nodes[ident]
                self._by_name.pop(node.key, None)

    def getattr(self, ident: int) -> bytes:
        return _ATTR_HEAD + self.node(ident).attr

    def readlink(self, ident: int) -> bytes:
        node = self.node(ident)
        if not stat.S_ISLNK(attr_mode(node.attr)):
            raise OSError(errno.EINVAL, "not a symbolic link")
        return node.target

    def readdir(self, ident: int, offset: int, size: int, *, plus: bool) -> bytes:
        """Return entries from position `offset`, as many as fit. With `plus`, each is also a lookup."""
        folder = self.node(ident)
        listing = self._listing(folder.path)
        parts: list[bytes] = []
        used = 0
        for position in range(offset, len(listing) + 2):
            name, attr = _position(folder, listing, position)
            length = 24 + len(name) + (-len(name) % 8) + (128 if plus else 0)
            if used + length > size:
                break
            used += length
            dirent = _DIRENT.pack(int.from_bytes(attr[:8], "little"), position + 1, len(name), attr_mode(attr) >> 12)
            if plus:
                parts.append(self._entry_plus(folder, listing, position, attr))
            parts.append(dirent + name + bytes(-len(name) % 8))
        return b"".join(parts)

    def read(self, ident: int, offset: int, target: memoryview) -> int:
        """Fill `target` from the file and return the number of bytes."""
        node = self.node(ident)
        pin = node.pin
        if pin is None:
            if not stat.S_ISREG(attr_mode(node.attr)):
                raise OSError(errno.EISDIR if stat.S_ISDIR(attr_mode(node.attr)) else errno.EINVAL, "not a file")
            pin = node.pin = attr_pin(node.attr)
        size = min(len(target), pin.size - offset)
        if size <= 0:
            return 0
        chunk_bytes = self._chunk_bytes
        first, last = offset // chunk_bytes, (offset + size - 1) // chunk_bytes
        missing = []
        done = 0
        for index in range(first, last + 1):
            key = chunk_key(node.path, pin, index)
            start = offset + done - index * chunk_bytes
            want = min(chunk_bytes - start, size - done)
            got = self._local.read_into(key, start, target[done : done + want])
            if got != want:
                missing.append(key)
            done += want
        if missing:
            raise Miss(*missing)
        for index in range(first, last + 1):
            if index != node.last:
                self.on_touch(chunk_key(node.path, pin, index))
        self._look_ahead(node, pin, first, last)
        return size

    # Internals

    def _listing(self, path: bytes) -> Listing:
        listing = self._local.listing(path)
        if listing is None:
            raise Miss(directory_key(path))
        return listing

    def _new_node(self, key: tuple[int, bytes], path: bytes, attr: bytes, target: bytes) -> Node:
        with self._lock:
            node = self._by_name.get(key)
            if node is None:
                node = Node(next(self._ids), path, attr, target, key)
                self._by_name[key] = self._nodes[node.id] = node
            return node

    def _child(self, folder: Node, listing: Listing, place: int) -> Node:
        name = listing.names[place]
        path = folder.path + b"/" + name if folder.path != b"/" else b"/" + name
        attr = listing.attr_at(place)
        target = listing.target_at(place) if stat.S_ISLNK(attr_mode(attr)) else b""
        return self._new_node((folder.id, name), path, attr, target)

    def _entry_plus(self, folder: Node, listing: Listing, position: int, attr: bytes) -> bytes:
        if position < 2:
            return ENTRY.pack(0, 0, 0, 0, 0, 0) + attr
        node = self._by_name.get((folder.id, listing.names[position - 2]))
        if node is None:
            node = self._child(folder, listing, position - 2)
        with self._lock:
            node.lookups += 1
        return node.entry

    def _look_ahead(self, node: Node, pin: Pin, first: int, last: int) -> None:
        """Prefetch a growing window for a sequential reader."""
        if first in (node.last, node.last + 1):
            if last > node.last:
                node.run += 1
                if node.run >= _AHEAD_AFTER and last + node.run >= node.ahead:
                    start = max(node.ahead, last + 1)
                    count = min(self._ahead_most, _AHEAD_START * node.run)
                    if start * self._chunk_bytes < pin.size:
                        node.ahead = start + count
                        self._local.will_want(chunk_key(node.path, pin, start), count)
        else:
            node.run = 0
            node.ahead = 0
        node.last = last


def _position(folder: Node, listing: Listing, position: int) -> tuple[bytes, bytes]:
    if position < 2:
        return (b".", b"..")[position], folder.attr
    return listing.names[position - 2], listing.attr_at(position - 2)


def split_batch_forget(body: bytes) -> Sequence[tuple[int, int]]:
    """Return the pairs of node and count of a BATCH_FORGET."""
    count = struct.unpack_from("<I", body)[0]
    return [struct.unpack_from("<QQ", body, 8 + 16 * i) for i in range(min(count, (len(body) - 8) // 16))]
