"""Write blocks to files, from any thread and in any order, and read them back for late children.

All paths start at the descriptor of a directory that only this user can enter. Every parent of a file is a directory of
the layout, which `layout.parse_items` checks. No write therefore goes through a link.
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
"""Permission bits of the source that a copy keeps.

The owner of the copy may differ from the owner of the source. With setuid, setgid or write permission for others, the
source's owner could act as the owner of the copy.
"""
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Copy:
    """The copy of one source, as `name` in the directory `parent` (a descriptor).

    Directories, links and empty files are made at once, other files as their blocks arrive.
    """

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
        """Files and directories whose copy has fewer permission bits than the source."""

    def begin(self) -> None:
        """Make all entries that have no bytes. Raises `OSError`."""
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
        """Record that the copy has its final name."""
        self._top = os.dup(parent), os.fsencode(name)  # threads that are reading still use the previous descriptor

    def write(self, block: StageBlock, data: memoryview) -> None:
        """Write every part of a block to its file. From any thread. Raises `OSError`."""
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
        """Read a block back from the files. Return False if not all of them exist."""
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
        """Set modes and dates of directories after the last write into them."""
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
        """Return directory and name of an item: the copy's name, or a path below its directory."""
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
