"""Blocks become files: written by whichever thread has them, in any order, and read back for who comes late."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence

from .layout import Block, Item, Part


class Copy:
    """The copy of one source below `place`. Folders, links and empty files are made at once, the rest as it comes."""

    def __init__(self, items: Sequence[Item], source: int, place: str, block_bytes: int) -> None:
        self._items = items
        self._place = os.fsencode(place)
        self._block_bytes = block_bytes
        self._own = [item for item in items if item.source == source]
        self._lock = threading.Lock()
        self._open: dict[int, tuple[int, int]] = {}
        self._masked = os.umask(0o077)
        os.umask(self._masked)
        self.files = 0

    def begin(self) -> None:
        """All names that have no bytes. Raises `OSError`."""
        for item in self._own:
            path = self._path(item)
            if item.target is not None:
                os.symlink(item.target, path)
            elif item.is_folder:
                os.mkdir(path, 0o700)
            elif item.pin.size == 0:
                self._end_file(self._create(path, item, os.O_EXCL), item)

    def moved(self, place: str) -> None:
        """The copy has its own name now."""
        self._place = os.fsencode(place)

    def write(self, block: Block, data: memoryview) -> None:
        """Every part of a block to its place in its file. From any thread. Raises `OSError`."""
        for part in block.parts:
            item = self._items[part.item]
            piece = data[part.start : part.start + part.length]
            if item.pin.size <= self._block_bytes:
                fd = self._create(self._path(item), item, os.O_EXCL)
                _write_all(fd, piece, 0)
                self._end_file(fd, item)
            else:
                self._write_part(item, part, piece)

    def read(self, block: Block, target: memoryview) -> bool:
        """A block from the files again; False where they are not all there."""
        try:
            for part in block.parts:
                fd = os.open(self._path(self._items[part.item]), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    piece = target[part.start : part.start + part.length]
                    if os.preadv(fd, [piece], part.chunk * self._block_bytes) != part.length:
                        return False
                finally:
                    os.close(fd)
        except OSError:
            return False
        return True

    def settle(self) -> None:
        """Modes and dates of folders, when nothing more is written into them."""
        for item in reversed(self._own):
            if item.is_folder:
                path = self._path(item)
                os.chmod(path, stat.S_IMODE(item.mode) | 0o700)
                os.utime(path, ns=(item.pin.mtime_ns, item.pin.mtime_ns))

    def close(self) -> None:
        with self._lock:
            for fd, _ in self._open.values():
                os.close(fd)
            self._open.clear()

    def _path(self, item: Item) -> bytes:
        return self._place + b"/" + item.path if item.path else self._place

    def _create(self, path: bytes, item: Item, flags: int) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, stat.S_IMODE(item.mode) | 0o400)

    def _write_part(self, item: Item, part: Part, piece: memoryview) -> None:
        with self._lock:
            held = self._open.get(part.item)
            if held is None:
                chunks = (item.pin.size + self._block_bytes - 1) // self._block_bytes
                held = self._open[part.item] = self._create(self._path(item), item, 0), chunks
        _write_all(held[0], piece, part.chunk * self._block_bytes)
        with self._lock:
            fd, left = self._open[part.item]
            if left > 1:
                self._open[part.item] = fd, left - 1
                return
            del self._open[part.item]
        self._end_file(fd, item)

    def _end_file(self, fd: int, item: Item) -> None:
        mode = stat.S_IMODE(item.mode) | 0o400
        if mode & (self._masked | 0o7000):
            os.fchmod(fd, mode)
        os.utime(fd, ns=(item.pin.mtime_ns, item.pin.mtime_ns))
        os.close(fd)
        with self._lock:
            self.files += 1


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = os.pwrite(fd, data, offset)
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
