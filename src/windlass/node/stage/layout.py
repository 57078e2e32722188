"""The layout of staged files, identical on every node: the files of all sources in order, cut into blocks.

A block is the unit of transfer and verification. A large file has many blocks. Many small files share one block, so
that a small file needs no separate round trip. The cut depends only on the files, so a block's number means the same on
every node.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

from windlass.node.cache.keys import BadKeyError, Pin, check_path, chunk_count, chunk_length, directory_key
from windlass.node.cache.listing import Listing, attr_mode, attr_pin
from windlass.node.wire.tree import children, node_at, tree_route

_SHORT = 32
_RUN = 4
_BLOCK = 1 << 20
_LARGE_BLOCK = 8 << 20
_LARGE_TOTAL = 64 << 30
_MAX_TEXT_BYTES = 2 << 30
_MAX_NUMBERS = (1 << 31, 1 << 32, 1 << 63, 1 << 63, 1 << 64)
"""Limits of source, mode, size, time and inode."""
_MAX_TOTAL = 1 << 50
_WALKERS = 8


class LayoutError(ValueError):
    """Bytes that are not a layout."""


class Item(NamedTuple):
    """A file, directory or link of a source. `path` is relative to the source, and empty for the source itself."""

    source: int
    path: bytes
    mode: int
    pin: Pin
    target: bytes | None

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


class BlockPart(NamedTuple):
    """Chunk `chunk` of a file, at `start` of its block."""

    item: int
    chunk: int
    start: int
    length: int


class StageBlock(NamedTuple):
    source: int
    length: int
    parts: tuple[BlockPart, ...]


class PushTrees(NamedTuple):
    """The trees along which nodes forward blocks.

    Each stripe of the blocks has a separate tree, and all trees are rotations of one. A node asks only nodes that
    precede it in that tree, so nodes never wait for each other in a cycle.
    """

    nodes: int
    stripes: int
    fanout: int
    one_reader: bool

    def route(self, node: int, stripe: int) -> tuple[int, ...]:
        """Return the nodes to ask for a stripe, best first. Empty for its reader of the shared file system."""
        if not self.one_reader:
            return tree_route(node, stripe, self.stripes, self.nodes, self.fanout)
        if node == 0:
            return ()
        others = tree_route(node - 1, stripe, self.stripes, self.nodes - 1, self.fanout)
        return (*(other + 1 for other in others), 0)

    def children(self, node: int, stripe: int) -> tuple[int, ...]:
        """Return the nodes that ask this node first for a stripe."""
        if not self.one_reader:
            return children(node, stripe, self.stripes, self.nodes, self.fanout)
        if node == 0:
            return (1 + node_at(0, stripe, self.stripes, self.nodes - 1),)
        return tuple(1 + c for c in children(node - 1, stripe, self.stripes, self.nodes - 1, self.fanout))


def make_trees(nodes: int, *, one_reader: bool = False) -> PushTrees:
    """Make trees in which a link carries each byte about once per direction, for any number of nodes.

    Few nodes form chains, which achieve that exactly. Many nodes form trees, which are less deep. There a node that
    forwards in two of eight trees is a leaf in the others. `one_reader`: only the first node reads the sources, and the
    other nodes have only the blocks that it sends.
    """
    if one_reader and nodes > 1:
        few = nodes - 1 <= _SHORT
        return PushTrees(nodes, 1 if few else 8, 1 if few else 4, True)
    few = nodes <= _SHORT
    return PushTrees(nodes, min(4, nodes) if few else 8, 1 if few else 4, False)


class Layout:
    """Items, blocks, and the assignment of blocks to stripes."""

    def __init__(self, items: Sequence[Item], stripes: int) -> None:
        self.items = tuple(items)
        self.total = sum(item.pin.size for item in self.items if item.is_file)
        self.block_bytes = _LARGE_BLOCK if self.total > _LARGE_TOTAL else _BLOCK
        self.stripes = stripes
        text = items_text(self.items)
        self.packed = zlib.compress(text, 1)
        # Hash the text and not the transferred bytes, because two nodes may have different versions of zlib.
        self.mark = hashlib.sha256(text).digest()

    @cached_property
    def blocks(self) -> list[StageBlock]:
        return cut(self.items, self.block_bytes)

    def index(self, stripe: int, position: int) -> int:
        """Return the block at a position of a stripe. Runs stay together, so readers read sequentially."""
        run, rest = divmod(position, _RUN)
        return (run * self.stripes + stripe) * _RUN + rest

    def place(self, index: int) -> tuple[int, int]:
        """Return stripe and position of a block."""
        run, rest = divmod(index, _RUN)
        return run % self.stripes, run // self.stripes * _RUN + rest

    def count(self, stripe: int) -> int:
        """Return the number of blocks of a stripe."""
        runs, rest = divmod(len(self.blocks), _RUN)
        full = (runs - stripe + self.stripes - 1) // self.stripes * _RUN if runs > stripe else 0
        return full + (rest if runs % self.stripes == stripe else 0)

    def digest(self, index: int, data: memoryview) -> bytes:
        """Return the digest that the reader of the shared file system makes for a block.

        Correct bytes of another block, or of another layout, do not match it.
        """
        state = hashlib.sha256(b"%d " % index + self.mark)
        state.update(data)
        return state.digest()


def cut(items: Sequence[Item], block_bytes: int) -> list[StageBlock]:
    """Return the blocks, in the order of the items. A block holds parts of one source only."""
    blocks: list[StageBlock] = []
    parts: list[BlockPart] = []
    length = source = 0
    for index, item in enumerate(items):
        if not item.is_file:
            continue
        for chunk in range(chunk_count(item.pin.size, block_bytes)):
            size = chunk_length(item.pin.size, block_bytes, chunk)
            if parts and (length + size > block_bytes or item.source != source):
                blocks.append(StageBlock(source, length, tuple(parts)))
                parts, length = [], 0
            source = item.source
            parts.append(BlockPart(index, chunk, length, size))
            length += size
    if parts:
        blocks.append(StageBlock(source, length, tuple(parts)))
    return blocks


def items_text(items: Sequence[Item]) -> bytes:
    """Return the items as text. The same items give the same text on every node."""
    rows = [
        (i.source, os.fsdecode(i.path), i.mode, *i.pin, None if i.target is None else os.fsdecode(i.target))
        for i in items
    ]
    # Names that are not UTF-8 are escaped byte by byte, which JSON preserves.
    return json.dumps(rows, separators=(",", ":")).encode()


def parse_items(data: bytes | bytearray) -> list[Item]:
    """Parse the items. Nothing can be written through a link with the result.

    Raises `LayoutError` for bytes that are not items, for a path outside of its source, and for a path below an entry
    that is not a directory made earlier by the layout.
    """
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(data, _MAX_TEXT_BYTES)
        if not unpacking.eof:
            raise LayoutError("not a layout: cut off, or of more than %d bytes" % _MAX_TEXT_BYTES)
        items = [
            Item(int(source), os.fsencode(path), int(mode), Pin(int(size), int(mtime), int(ino)), _target(target))
            for source, path, mode, size, mtime, ino, target in json.loads(text)
        ]
    except (ValueError, TypeError, OverflowError, RecursionError, zlib.error) as error:
        raise LayoutError("not a layout: %s" % error) from error
    _check_items(items)
    return items


def _check_items(items: Sequence[Item]) -> None:
    """Check that each item is a file, directory or link with a unique name, in a directory that precedes it."""
    folders: set[tuple[int, bytes]] = set()
    seen: set[tuple[int, bytes]] = set()
    total = 0
    for item in items:
        if item.path:
            try:
                check_path(b"/" + item.path)
            except BadKeyError as error:
                raise LayoutError("not a layout: %s" % error) from error
            if (item.source, item.path.rpartition(b"/")[0]) not in folders:
                raise LayoutError("%r is in no folder of the layout" % item.path[:80])
        if (item.source, item.path) in seen:
            raise LayoutError("%r is in the layout twice" % item.path[:80])
        seen.add((item.source, item.path))
        pin = item.pin
        total += max(0, pin.size)
        if total > _MAX_TOTAL:
            raise LayoutError("a layout of more than %d bytes" % _MAX_TOTAL)
        numbers = (item.source, item.mode, pin.size, abs(pin.mtime_ns), pin.ino)
        if not all(0 <= number < most for number, most in zip(numbers, _MAX_NUMBERS)):
            raise LayoutError("numbers of %r are out of range" % item.path[:80])
        if item.target is not None:
            if not item.path or not item.target or b"\0" in item.target:
                raise LayoutError("%r is no link" % item.path[:80])
        elif item.is_folder:
            folders.add((item.source, item.path))
        elif not item.is_file:
            raise LayoutError("%r is no file, folder or link" % item.path[:80])


def _target(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def survey(sources: Sequence[tuple[bytes, bytes]], read: Callable[[bytes], bytes | memoryview]) -> list[Item]:
    """Return all files below the sources (path, real path), in an order that depends on the names alone.

    `read` returns the listing of a directory by its key. Raises `OSError`. Entries that are not a file, directory or
    link are skipped.
    """
    items = []
    with ThreadPoolExecutor(_WALKERS) as pool:
        for source, (path, real) in enumerate(sources):
            status = os.stat(real)
            pin = Pin(status.st_size, status.st_mtime_ns, status.st_ino)
            items.append(Item(source, b"", status.st_mode, pin, None))
            level = [b""] if stat.S_ISDIR(status.st_mode) else []
            while level:
                keys = [directory_key(path + (b"/" + folder if folder else b"")) for folder in level]
                below: list[bytes] = []
                for folder, blob in zip(level, pool.map(lambda key: bytes(read(key)), keys)):
                    found = _entries(source, folder, Listing(blob))
                    items += found
                    below += [item.path for item in found if item.is_folder]
                level = below
    return items


def _entries(source: int, folder: bytes, listing: Listing) -> list[Item]:
    above = folder + b"/" if folder else b""
    found = []
    for entry in listing.entries():
        mode = attr_mode(entry.attr)
        if entry.target is not None or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            found.append(Item(source, above + entry.name, mode, attr_pin(entry.attr), entry.target))
    return found
