"""Names on the node's storage. Incomplete copies are in a private directory with a random name.

The target may be a directory that other users also write to. They cannot guess or reach the incomplete files. This
module never follows, waits for or removes files of other users. It uses the private directory through its descriptor
and never by name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat

from windlass.node.agent.host import AgentError

PARTIAL = ".windlass-stage."
_LOCK = "lock"
_OLD = "old"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Workplace:
    """A private directory below `target`, locked while we live.

    It is removed at the end, together with all copies that did not get their final name. `fd` is the directory,
    `target_fd` the target.
    """

    def __init__(self, target: str) -> None:
        self._path = target

    def __enter__(self) -> Workplace:
        self.target_fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while not self._make():
                pass
        except BaseException:
            os.close(self.target_fd)
            raise
        return self

    def _make(self) -> bool:
        self._name = PARTIAL + secrets.token_hex(8)
        os.mkdir(self._name, 0o700, dir_fd=self.target_fd)
        self.fd = os.open(self._name, _FOLDER_FLAGS, dir_fd=self.target_fd)
        if os.fstat(self.fd).st_uid != os.geteuid():  # no sticky bit, or another user owns the target
            os.close(self.fd)
            raise AgentError("another user replaces windlass's folders in %s: choose another --to" % self._path)
        self._lock = os.open(_LOCK, _LOCK_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.fd)
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._lock).st_nlink:
                return True
        os.close(self._lock)  # another agent removed it before it was locked
        os.close(self.fd)
        return False

    def put_in_place(self, name: str, final: str) -> None:
        """Rename the finished copy `name` to its final name in the target. Remove our older copy there.

        Raises `AgentError` if the name belongs to another user.
        """
        try:
            try:
                os.rename(name, final, src_dir_fd=self.fd, dst_dir_fd=self.target_fd)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
                    raise
                os.rename(final, _OLD, src_dir_fd=self.target_fd, dst_dir_fd=self.fd)
                os.rename(name, final, src_dir_fd=self.fd, dst_dir_fd=self.target_fd)
                remove(_OLD, self.fd)
        except OSError as error:
            where = os.path.join(self._path, final)
            text = "%s: %s%s" % (where, error.strerror, self._owner_text(final))
            raise AgentError(text) from error

    def _owner_text(self, name: str) -> str:
        with contextlib.suppress(OSError):
            uid = os.stat(name, dir_fd=self.target_fd, follow_symlinks=False).st_uid
            if uid != os.geteuid():
                return " (it belongs to uid %d; choose another folder with --to)" % uid
        return ""

    def __exit__(self, *_: object) -> None:
        empty_folder(self.fd)
        with contextlib.suppress(OSError):
            os.rmdir(self._name, dir_fd=self.target_fd)
        for descriptor in (self._lock, self.fd, self.target_fd):
            os.close(descriptor)


def sweep_partial(target: str) -> None:
    """Remove incomplete copies of this user's killed agents: private directories whose lock is free.

    Other directories and those of other users are not changed.
    """
    top = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(top):
            if name.startswith(PARTIAL):
                with contextlib.suppress(OSError):
                    _sweep_one(top, name)
    finally:
        os.close(top)


def _sweep_one(top: int, name: str) -> None:
    folder = os.open(name, _FOLDER_FLAGS, dir_fd=top)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(_LOCK, _LOCK_FLAGS, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            empty_folder(folder)
            os.rmdir(name, dir_fd=top)
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def empty_folder(folder: int) -> None:
    """Remove all entries of an open directory that we own. The lock is last.

    `sweep_partial` does not remove a directory without a lock.
    """
    for name in sorted(os.listdir(folder), key=lambda name: name == _LOCK):
        with contextlib.suppress(OSError):
            remove(name, folder)


def remove(name: str, folder: int) -> None:
    """Remove a name of any type in an open directory. Links are not followed."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    for _, _, _, fd in os.fwalk(name, dir_fd=folder):
        os.fchmod(fd, 0o700)
    shutil.rmtree("/proc/self/fd/%d/%s" % (folder, name), ignore_errors=True)
