"""Objects kept on the node, one file each, under a byte budget.

A file per object is what makes sharing with the mount process simple: a complete object appears by `rename`, an evicted
one goes by `unlink`, and who has it open keeps it. There is no table to share, no lock to share and no memory map that
a full file system could turn into a crash. On tmpfs it is memory, on NVMe it is disk; the code is the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict

from .config import make_private_folder
from .keys import store_name

_PAGE = 4096
_OVERHEAD = 1024


class Store:
    """The writing side, in the peer process. Thread-safe. The budget may shrink (node full), never grow."""

    def __init__(self, folder: str, budget_bytes: int) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.evicted = 0
        self.refused = 0
        self._lock = threading.Lock()
        self._held: OrderedDict[bytes, tuple[int, bytes, bool]] = OrderedDict()
        self._guests: OrderedDict[bytes, None] = OrderedDict()
        self._temporary = 0
        make_private_folder(folder)
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for left_over in os.listdir(folder):  # of a peer process that died: nobody knows their digests any more
            os.unlink(os.path.join(folder, left_over))

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def digest_of(self, key: bytes) -> bytes | None:
        """Digest of a held object, or None. Counts as a use."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            self._held.move_to_end(key)
            return held[1]

    def touch(self, key: bytes) -> None:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)

    def put(self, key: bytes, digest: bytes, data: bytes | bytearray | memoryview, *, guest: bool = False) -> bool:
        """Keep an object; False where it does not fit, which is never an error. Guests (objects that another node
        owns) leave first."""
        cost = _cost(len(data))
        with self._lock:
            if key in self._held:
                return True
            if not self._make_room(cost):
                self.refused += 1
                return False
            self.used_bytes += cost
            self._temporary += 1
            temporary = "new.%d" % self._temporary
        try:
            _write(temporary, self._fd, data)
            os.rename(temporary, store_name(key), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._fd)
            with self._lock:
                self.used_bytes -= cost
                self.refused += 1
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
                    self._shrink()
            return False
        with self._lock:
            self._held[key] = (cost, digest, guest)
            if guest:
                self._guests[key] = None
        return True

    def open(self, key: bytes) -> int | None:
        """A descriptor of a held object, or None."""
        try:
            return os.open(store_name(key), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            self.drop(key)
            return None

    def drop(self, key: bytes) -> None:
        with self._lock:
            self._remove(key)

    def close(self) -> None:
        """Empties the store."""
        with self._lock:
            for key in list(self._held):
                self._remove(key)
            self.budget_bytes = 0
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _make_room(self, cost: int) -> bool:
        if cost > self.budget_bytes:
            return False
        while self.used_bytes + cost > self.budget_bytes:
            if not self._held:
                return False  # the rest is being written by other threads
            self.evicted += 1
            self._remove(next(iter(self._guests or self._held)))
        return True

    def _shrink(self) -> None:
        """The place is full although the budget is not: from now on make do with less than what is there."""
        self.budget_bytes = max(0, min(self.budget_bytes, self.used_bytes) * 9 // 10)
        while self.used_bytes > self.budget_bytes and self._held:
            self.evicted += 1
            self._remove(next(iter(self._guests or self._held)))

    def _remove(self, key: bytes) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        self._guests.pop(key, None)
        self.used_bytes -= held[0]
        with contextlib.suppress(OSError):
            os.unlink(store_name(key), dir_fd=self._fd)


def _cost(size: int) -> int:
    return (size + _PAGE - 1) // _PAGE * _PAGE + _OVERHEAD


def _write(name: str, folder: int, data: bytes | bytearray | memoryview) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        done = os.write(fd, data)
        while done < len(data):
            done += os.write(fd, memoryview(data)[done:])
    finally:
        os.close(fd)


class StoreReader:
    """The reading side, in the mount process: opens what is there, owns nothing."""

    def __init__(self, folder: str) -> None:
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def read_into(self, key: bytes, offset: int, target: memoryview) -> int:
        """Bytes copied from `offset` of the object into `target`, or -1 where it is not held."""
        try:
            fd = os.open(store_name(key), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return -1
        try:
            return os.preadv(fd, [target], offset)
        finally:
            os.close(fd)

    def read(self, key: bytes) -> bytes | None:
        """A whole object, or None."""
        try:
            fd = os.open(store_name(key), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return None
        try:
            return os.read(fd, os.fstat(fd).st_size + 1)
        finally:
            os.close(fd)

    def close(self) -> None:
        os.close(self._fd)
