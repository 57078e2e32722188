"""Files that are replaced in one step: a reader sees the old one or the new one, and a failure leaves the old one.

Travels to the nodes and lives in the user's process: standard library, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os


def replace_file(path: str | os.PathLike[str], data: bytes, mode: int = 0o600) -> None:
    """The file holds `data` on return. On `OSError` it is as it was before, and nothing else is left."""
    folder, name = os.path.split(os.fspath(path))
    partial = os.path.join(folder, ".%s.%d" % (name, os.getpid()))
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
