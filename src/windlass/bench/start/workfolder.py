"""The folder that a measurement works in: gone when it ends, and where it was killed, gone when the next one starts.

Copies of a gigabyte per node are too much to leave lying about, in memory above all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "windlass-bench."
_LOCK = ".lock"


@contextlib.contextmanager
def work_folder(wanted: str | None) -> Iterator[Path]:
    """A new folder below `wanted`, or where temporary files go. It is ours as long as we hold its lock."""
    above = Path(wanted) if wanted is not None else Path(tempfile.gettempdir())
    above.mkdir(parents=True, exist_ok=True)
    sweep_folders(above)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep_folders(above: Path) -> tuple[Path, ...]:
    """Remove our folders below `above` whose lock nobody holds; returns them. What has no lock is left alone."""
    swept = []
    for folder in sorted(above.glob(f"{_PREFIX}*")):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            swept.append(folder)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    return tuple(swept)
