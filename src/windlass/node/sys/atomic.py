"""Write files safely in directories that other users can write to. Lock files.

A reader sees either the old file or the new one. The functions never follow a link at the name of the file. They also
never follow a link in its path that another user made. Node code and the user's process import this module, so it uses
only the standard library and runs on Python 3.9.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from typing import BinaryIO

from windlass.node.sys.folders import UntrustedError, open_folder
from windlass.node.sys.reading import open_plain

_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def replace_file(path: str | os.PathLike[str], data: bytes, mode: int = 0o600) -> None:
    """Write `data` to `path` atomically. See `replacing`."""
    with replacing(path, mode) as file:
        file.write(data)


def replace_text(path: str | os.PathLike[str], text: str, mode: int = 0o600) -> None:
    """Write text to `path` atomically. See `replacing`.

    A character that is not valid Unicode is written as an escape such as `\\udcff`.
    """
    replace_file(path, text.encode("utf-8", "backslashreplace"), mode)


def copy_file(source: str | os.PathLike[str], path: str | os.PathLike[str], mode: int = 0o600) -> None:
    """Copy the plain file `source` to `path` atomically. See `replacing`."""
    with open_plain(source) as content, replacing(path, mode) as file:
        while piece := content.read(1 << 20):
            file.write(piece)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a new temporary file that is renamed to `path` at the end.

    The temporary file has a random name and is in the directory of `path`. Never follows a link at `path` or at the
    temporary name. On an exception the old file is unchanged and no temporary file remains. Raises `UntrustedError` if
    every user can replace the files of the directory, or if a link of another user leads to the directory.
    """
    with _parent(path) as (parent, name):
        partial = ".%s.%s" % (name[:200], os.urandom(8).hex())
        try:
            with open(os.open(partial, _CREATE_FLAGS, mode, dir_fd=parent), "wb") as file:
                yield file
            os.rename(partial, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=parent)
            raise


def create_file(path: str | os.PathLike[str], data: bytes = b"", mode: int = 0o600) -> None:
    """Create a file. Raises `FileExistsError` if the name exists, even as a link."""
    with _parent(path) as (parent, name), open(os.open(name, _CREATE_FLAGS, mode, dir_fd=parent), "wb") as file:
        file.write(data)


def open_append(path: str | os.PathLike[str], mode: int = 0o600, *, fresh: bool = False) -> BinaryIO:
    """Return `append_descriptor` as a file object."""
    return open(append_descriptor(path, mode, fresh=fresh), "ab")


def append_descriptor(path: str | os.PathLike[str], mode: int = 0o600, *, fresh: bool = False) -> int:
    """Open a file that we own for appending. Create it if necessary.

    With `fresh`, a new file replaces the old one. Raises `UntrustedError` for a link, for a file that is not plain, and
    for a file of another user.
    """
    with _parent(path) as (parent, name):
        if fresh:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
        try:
            opened = os.open(name, _APPEND_FLAGS | (os.O_EXCL if fresh else 0), mode, dir_fd=parent)
        except OSError:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                raise
            raise UntrustedError(path, "is not a plain file that you own: remove it") from None
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
        os.close(opened)
        raise UntrustedError(path, "is not a plain file that you own: remove it")
    return opened


@contextlib.contextmanager
def _parent(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Open the directory of a file. Return its descriptor and the name of the file."""
    folder, name = os.path.split(os.fspath(path))
    parent = open_folder(folder or ".")
    try:
        found = os.fstat(parent)
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise UntrustedError(
                folder or ".", "lets every user replace the files in it: remove its world write permission"
            )
        yield parent, name
    finally:
        os.close(parent)


def take_lock(path: str | os.PathLike[str], timeout_s: float = 0.0) -> int:
    """Return a descriptor that holds the file's lock until it is closed.

    Creates the file if necessary. Raises `BlockingIOError` if another process still holds the lock after `timeout_s`.
    Raises another `OSError` if the file system does not support locks.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    end = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= end:
                os.close(lock)
                raise
        time.sleep(0.01)


def is_locked(path: str | os.PathLike[str]) -> bool | None:
    """Return whether a process holds the lock. None if there is no such file or we cannot open it."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
