"""Blocks become files: written by whichever thread has them, in any order, and read back for who comes late.

Everything is reached from the descriptor of a folder that only this user can enter, and every name above a file is a
folder of the layout (`layout.parse_items` sees to it): no write goes through a link.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence

from windlass.node.stage.layout import BlockPart, Item, StageBlock

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_BITS = 0o755
"""Permission bits of the source that a copy keeps. The copy belongs to another user than the source may: setuid, setgid
and write permission for others would let the source's owner act as the owner of the copy."""
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Copy:
    """The copy of one source, as `name` in the folder `parent` (a descriptor). Folders, links and empty files are made
    at once, the rest as it comes."""

    def __init__(self, items: Sequence[Item], source: int, parent: int, name: str, block_bytes: int) -> None:
        self._items = items
        self._top = os.dup(parent), os.fsencode(name)
        self._folder = -1
        self._block_bytes = block_bytes
        self._own = [item for item in items if item.source == source]
        self._lock = threading.Lock()
        self._open: dict[int, tuple[int, int]] = {}
        self._masked = os.umask(0o077)
        os.umask(self._masked)
        self.files = 0
        self.dropped_bits = sum(item.target is None and _mode(item) != stat.S_IMODE(item.mode) for item in self._own)
        """Files and folders whose copy has fewer permission bits than the source."""

    def begin(self) -> None:
        """All names that have no bytes. Raises `OSError`."""
        for item in self._own:
            folder, name = self._place(item)
            if item.target is not None:
                os.symlink(item.target, name, dir_fd=folder)
            elif item.is_folder:
                os.mkdir(name, 0o700, dir_fd=folder)
                if not item.path:
                    self._folder = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            elif item.pin.size == 0:
                self._end_file(self._create(item), item)

    def moved(self, parent: int, name: str) -> None:
        """The copy has its own name now."""
        self._top = os.dup(parent), os.fsencode(name)  # who reads meanwhile still uses the one before

    def write(self, block: StageBlock, data: memoryview) -> None:
        """Every part of a block to its place in its file. From any thread. Raises `OSError`."""
        for part in block.parts:
            item = self._items[part.item]
            piece = data[part.start : part.start + part.length]
            if item.pin.size <= self._block_bytes:
                fd = self._create(item)
                _write_all(fd, piece, 0)
                self._end_file(fd, item)
            else:
                self._write_part(item, part, piece)

    def read(self, block: StageBlock, target: memoryview) -> bool:
        """A block from the files again; False where they are not all there."""
        try:
            for part in block.parts:
                folder, name = self._place(self._items[part.item])
                fd = os.open(name, _READ_FLAGS, dir_fd=folder)
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
                folder, name = self._place(item)
                fd = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
                try:
                    os.fchmod(fd, _mode(item) | 0o700)
                    os.utime(fd, ns=(item.pin.mtime_ns, item.pin.mtime_ns))
                finally:
                    os.close(fd)

    def _place(self, item: Item) -> tuple[int, bytes]:
        """Folder and name of an item: the copy's own name, or a path below its folder."""
        return (self._folder, item.path) if item.path else self._top

    def _create(self, item: Item) -> int:
        folder, name = self._place(item)
        return os.open(name, _CREATE_FLAGS, _mode(item) | 0o400, dir_fd=folder)

    def _write_part(self, item: Item, part: BlockPart, piece: memoryview) -> None:
        with self._lock:
            held = self._open.get(part.item)
            if held is None:
                chunks = (item.pin.size + self._block_bytes - 1) // self._block_bytes
                held = self._open[part.item] = self._create(item), chunks
        _write_all(held[0], piece, part.chunk * self._block_bytes)
        with self._lock:
            fd, left = self._open[part.item]
            if left > 1:
                self._open[part.item] = fd, left - 1
                return
            del self._open[part.item]
        self._end_file(fd, item)

    def _end_file(self, fd: int, item: Item) -> None:
        mode = _mode(item) | 0o400
        if mode & self._masked:
            os.fchmod(fd, mode)
        os.utime(fd, ns=(item.pin.mtime_ns, item.pin.mtime_ns))
        os.close(fd)
        with self._lock:
            self.files += 1


def _mode(item: Item) -> int:
    return stat.S_IMODE(item.mode) & _KEPT_BITS


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = os.pwrite(fd, data, offset)
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
