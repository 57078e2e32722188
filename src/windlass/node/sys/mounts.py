"""What is mounted on this node: asks the kernel and not the mounts, of which one that is dead answers nobody."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class Mount(NamedTuple):
    place: str
    kind: str
    source: str
    uid: int | None
    """Who mounted it, where the kernel says that: of FUSE."""


def mounts(table: str = "/proc/self/mountinfo") -> list[Mount]:
    """Every mount that this process sees."""
    found = []
    with open(table, "rb") as file:
        for line in file:
            fields, _, rest = line.partition(b" - ")
            kind, source, options = rest.split()[:3]
            owner = re.search(rb"\buser_id=(\d+)", options)
            uid = int(owner[1]) if owner else None
            found.append(Mount(_path(fields.split()[4]), os.fsdecode(kind), _path(source), uid))
    return found


def real_place(where: str) -> str:
    """A mount's place as the kernel tells it. The mount itself, which may be dead, is not looked at."""
    return os.path.join(os.path.realpath(os.path.dirname(where)), os.path.basename(where))


def _path(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field))
