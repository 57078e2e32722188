"""Locks of files as proof of life: the kernel gives them back when their process ends, in whatever way.

For node-local file systems; shared ones often have no locks. Travels to the nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import fcntl
import os
import time


def take_lock(path: str | os.PathLike[str], timeout_s: float = 0.0) -> int:
    """A descriptor that holds the file's lock until it is closed; the file is made if need be. `BlockingIOError` where
    another process still holds it after `timeout_s`, another `OSError` where there are no locks."""
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
    """Whether a process holds the file's lock; None where there is no such file, or none that we may open."""
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
