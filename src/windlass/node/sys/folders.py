"""Trusted directories and files on machines that other users share.

A trusted path belongs to us, is closed to others, and is not reached through a link. All code that applies these rules
is in this module. Node code and the user's process import it, so it uses only the standard library and runs on Python
3.9.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERFLOW_UID = 65534
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(PermissionError):
    """A directory or file that another user made or could have changed. The message has the path and the remedy."""

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(errno.EPERM, why, os.fspath(path))

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


def private_folder(path: str | os.PathLike[str]) -> str:
    """Return the directory. Create it if necessary.

    On return the directory is not a link, belongs to us, and no other user can enter it. Raises `UntrustedError` if
    another user created the path first, which is possible in a directory that all users can write to.
    """
    with contextlib.suppress(FileExistsError):
        Path(path).mkdir(mode=0o700, parents=True)
    try:
        folder = os.open(path, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UntrustedError(path, "is a link or a file, but must be a folder that you own: remove it") from None
        if error.errno == errno.EACCES and Path(path).lstat().st_uid != os.geteuid():
            raise _not_ours(path, Path(path).lstat()) from None
        raise
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid():
            raise _not_ours(path, status)
        if status.st_mode & 0o077:
            os.fchmod(folder, 0o700)
    finally:
        os.close(folder)
    return os.fspath(path)


def _not_ours(path: str | os.PathLike[str], status: os.stat_result) -> UntrustedError:
    return UntrustedError(path, f"belongs to uid {status.st_uid}: choose another folder")


def is_own(status: os.stat_result) -> bool:
    """Return whether no other user could have written the file.

    The file belongs to us or to the system, and neither group nor others can write to it.
    """
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & _OTHERS_WRITE


def open_own(path: str | os.PathLike[str]) -> int:
    """Open a plain file for reading that only we could have written.

    Raises `UntrustedError` otherwise. The check uses the open descriptor, so the file cannot be replaced between the
    check and the read.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError(path, "is a link") from None
        raise
    status = os.fstat(opened)
    if stat.S_ISREG(status.st_mode) and is_own(status):
        return opened
    os.close(opened)
    raise UntrustedError(path, "is not a plain file that only you can write")


def keep_to_ourselves(path: str | os.PathLike[str]) -> None:
    """Remove the write access of other users to this directory.

    The directory must exist and belong to us. An example is a project directory that was made with umask 002. Raises
    `UntrustedError` and changes nothing if the directory or a link to it belongs to another user, or if another user
    has put a file into it.
    """
    link = Path(path).lstat()
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        for found in (link, status):
            if found.st_uid not in (os.geteuid(), 0) or status.st_uid != os.geteuid():
                raise _not_ours(path, found)
        mode = stat.S_IMODE(status.st_mode)
        if mode & _OTHERS_WRITE:
            os.fchmod(folder, mode & ~_OTHERS_WRITE)  # before the check, so that no file can be added after it
        with os.scandir(folder) as entries:
            foreign = [(entry.name, entry.stat(follow_symlinks=False).st_uid) for entry in entries]
        for name, uid in foreign:
            if uid not in (os.geteuid(), 0):
                os.fchmod(folder, mode)
                raise UntrustedError(path, f"holds {name!r} of uid {uid}: choose a folder that only you use")
    finally:
        os.close(folder)


def open_folder(path: str | os.PathLike[str]) -> int:
    """Open a directory in which files can be created and renamed. Return a descriptor.

    Follows our links and links of the system. Raises `UntrustedError` for a link of another user, because that user
    could point it to one of our directories.
    """
    steps = os.fspath(path).split(os.sep)[::-1]
    folder = os.open(os.sep if os.path.isabs(path) else os.curdir, _STEP)
    links = 0
    try:
        while steps:
            step = steps.pop() or os.curdir
            try:
                inner = os.open(step, _STEP, dir_fd=folder)
            except NotADirectoryError:
                links += 1
                target = _link_target(step, folder, path) if links < 40 else None
                if target is None:
                    raise
                steps += target.split(os.sep)[::-1]
                inner = os.open(os.sep if os.path.isabs(target) else os.curdir, _STEP, dir_fd=folder)
            os.close(folder)
            folder = inner
    except OSError as error:
        os.close(folder)
        error.filename = os.fspath(path)
        raise
    return folder


def _link_target(name: str, folder: int, path: str | os.PathLike[str]) -> str | None:
    """Return the target of a link in this directory, or None if the name is not a link."""
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(link)
        if not stat.S_ISLNK(status.st_mode):
            return None
        if _is_foreign(status) and not (status.st_uid == _OVERFLOW_UID and _in_user_namespace()):
            raise UntrustedError(path, f"leads through {name!r}, a link of uid {status.st_uid}: name the folder itself")
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _in_user_namespace() -> bool:
    """Return whether files of the system can appear to belong to `nobody`, as in a rootless container."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` or its link target belongs to a user who is neither us nor the system.

    Raises `OSError` if the path does not exist.
    """
    return _is_foreign(os.lstat(path)) or _is_foreign(os.stat(path))


def _is_foreign(status: os.stat_result) -> bool:
    return status.st_uid not in (os.geteuid(), 0)


def require_owner(folder: str | os.PathLike[str], below: Iterable[Path], owner: int | None = None) -> None:
    """Check that only one user and the system can change a directory and the paths `below` it.

    The user is `owner`. The default is the owner of the directory. Raises `UntrustedError` with the first path that
    others can change or that is a link.
    """
    os.close(open_folder(folder))
    top = Path(folder).resolve()
    owners = {0, top.stat().st_uid if owner is None else owner}
    if _in_user_namespace():
        owners.add(_OVERFLOW_UID)
    for path in (*top.parents, top, *below):
        status = path.lstat()
        above = path in top.parents
        opened = status.st_mode & (stat.S_IWOTH if above else _OTHERS_WRITE)
        if stat.S_ISLNK(status.st_mode):
            raise UntrustedError(path, "is a link")
        if status.st_uid not in owners:
            raise UntrustedError(path, f"belongs to uid {status.st_uid}")
        if opened and not (above and status.st_mode & stat.S_ISVTX):
            raise UntrustedError(path, "can be changed by other users")


@contextlib.contextmanager
def temporary_folder(prefix: str, above: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Create a directory with `new_folder` and remove it at the end."""
    folder = new_folder(prefix, above)
    try:
        yield folder
    finally:
        import shutil  # imported here because it is slow to import, as is tempfile

        shutil.rmtree(folder, ignore_errors=True)


def new_folder(prefix: str, above: str | os.PathLike[str] | None = None) -> Path:
    """Create a private directory with a random name below `above` or in the temporary directory."""
    import tempfile  # imported here because it is slow to import, and only programs that build something need it

    return Path(tempfile.mkdtemp(prefix=prefix, dir=above))


def exposure(path: str | os.PathLike[str]) -> str | None:
    """Describe which other users can rename `path` and so replace it.

    The answer is every user if a parent directory is open to all without a sticky bit. It is another user if that user
    owns a parent directory inside a directory that all users can write to. None if no other user can rename it.
    Directories that belong to a project's group or owner are accepted, because the project decided that.
    """
    for folder in Path(path).resolve().parents:
        with contextlib.suppress(OSError):
            status = folder.stat()
            if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
                return f"every user can rename files in {folder} (it has no sticky bit)"
            if status.st_uid not in (os.geteuid(), 0) and folder.parent.stat().st_mode & stat.S_IWOTH:
                return f"uid {status.st_uid} can rename files in {folder}, because they own it"
    return None
