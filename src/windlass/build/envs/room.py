"""What to do where an environment or its archive cannot be written, by what the system answered."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def hint_for(error: OSError, folder: Path) -> str:
    """What to do about an error of writing into a folder that is there."""
    if error.errno in _NO_ROOM:
        return room_hint(folder)
    if error.errno in _NOT_ALLOWED:
        return f"you may not write to {folder}: choose another place"
    return f"{folder} takes no new files: choose another place"


def room_hint(folder: Path) -> str:
    """How much room is left."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return "make room, or choose another place"
    return f"{folder} has {free / 1e9:.1f} GB left (and perhaps a quota): make room, or choose another place"
