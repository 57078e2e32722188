"""Replace a file in one step, safely in folders that other users can write to.

A reader sees the old file or the new one. Node code and the user's process import this module: standard library,
Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import stat

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(path: str | os.PathLike[str], data: bytes, mode: int = 0o600) -> None:
    """Write `data` to `path` through a new file with a random name in the same folder.

    Never follows a link at `path` or at the temporary name. On `OSError` the old file is unchanged and no temporary
    file remains. Raises `PermissionError` where every user can replace the files of the folder.
    """
    folder, name = os.path.split(os.fspath(path))
    parent = os.open(folder or ".", _FOLDER_FLAGS)
    try:
        found = os.fstat(parent)
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise PermissionError(
                1, "every user can replace files in %s: remove its world write permission" % (folder or ".")
            )
        partial = ".%s.%s" % (name[:200], os.urandom(8).hex())
        try:
            with open(os.open(partial, _CREATE_FLAGS, mode, dir_fd=parent), "wb") as file:
                file.write(data)
            os.rename(partial, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=parent)
            raise
    finally:
        os.close(parent)
