"""The work directory of a measurement. It is removed at the end, or after a kill when the next measurement starts.

Copies of a gigabyte per node are too large to leave behind, above all in memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from windlass.node.sys.atomic import is_locked, take_lock
from windlass.node.sys.folders import new_folder

_PREFIX = "windlass-bench."
_LOCK = ".lock"


@contextlib.contextmanager
def work_folder(wanted: str | None) -> Iterator[Path]:
    """Create a new directory below `wanted`, or below the temporary directory.

    We own it as long as we hold its lock.
    """
    if wanted is not None:
        Path(wanted).mkdir(parents=True, exist_ok=True)
    folder = new_folder(_PREFIX, wanted)
    sweep_folders(folder.parent)
    lock = take_lock(folder / _LOCK)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep_folders(above: Path) -> tuple[Path, ...]:
    """Remove our directories below `above` whose lock is free, and return them. Directories without a lock are kept."""
    swept = []
    for folder in sorted(above.glob(f"{_PREFIX}*")):
        with contextlib.suppress(FileNotFoundError):
            if folder.lstat().st_uid == os.geteuid() and is_locked(folder / _LOCK) is False:
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
    return tuple(swept)
