"""Names on the node's storage: what is being written lies under a name that nobody reads, until it is complete."""

from __future__ import annotations

import fcntl
import os
import shutil

PARTIAL = ".windlass-stage."


class partial_place:  # noqa: N801 - used as a function in a with statement
    """A name to write under, locked while we live, and gone afterwards where it did not get its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> str:
        self._lock = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._path

    def __exit__(self, *_: object) -> None:
        remove(self._path)
        remove(self._path + ".lock")
        os.close(self._lock)


def put_in_place(partial: str, final: str) -> None:
    """The finished copy gets its name; one that stood there before is taken away."""
    try:
        os.rename(partial, final)
    except OSError:
        old = partial + ".old"
        os.rename(final, old)
        os.rename(partial, final)
        remove(old)


def sweep_partial(target: str) -> None:
    """Removes what a killed agent left half-done: partial copies whose lock nobody holds."""
    for name in os.listdir(target):
        if not (name.startswith(PARTIAL) and name.endswith(".lock")):
            continue
        lock = os.path.join(target, name)
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        finally:
            os.close(fd)
        for rest in ("", ".old", ".lock"):
            remove(lock[: -len(".lock")] + rest)


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
