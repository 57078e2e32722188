"""How much memory this node could still give away: the machine's, or what the batch system left this job of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from windlass.node.sys.mounts import mounts


class _Version(NamedTuple):
    """Where a version of control groups keeps its limit and its use."""

    limit: str
    used: str
    place: str
    """Where it is usually mounted."""


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "/sys/fs/cgroup/memory")
_V2 = _Version("memory.max", "memory.current", "/sys/fs/cgroup")


def memory_left(proc: str = "/proc") -> int:
    """Bytes; 0 where nobody knows."""
    left = [found for found in (_machine(proc), *_control_groups(proc)) if found is not None]
    return max(0, min(left)) if left else 0


def _machine(proc: str) -> int | None:
    try:
        with open(os.path.join(proc, "meminfo"), encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _control_groups(proc: str) -> Iterator[int]:
    """What is left in the process's control group and in each one above it, in both versions: a machine may have its
    memory in either."""
    for version, path in _own_groups(proc):
        top, above = _mounted(proc, version)
        # In a container the path may be the host's, of which nothing is seen here but the group that is mounted.
        own = path[len(above) :] if path == above or path.startswith(above.rstrip("/") + "/") else ""
        own = os.path.normpath("/" + own).strip("/")
        while True:
            left = _left(os.path.join(top, own), version)
            if left is not None:
                yield left
            if not own:
                break
            own = os.path.dirname(own)


def _own_groups(proc: str) -> list[tuple[_Version, str]]:
    found = []
    try:
        with open(os.path.join(proc, "self", "cgroup"), encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                number, controllers, path = line.rstrip("\n").split(":", 2)
                if number == "0" and not controllers:
                    found.append((_V2, path))
                elif "memory" in controllers.split(","):
                    found.append((_V1, path))
    except (OSError, ValueError):
        pass
    return found


def _mounted(proc: str, version: _Version) -> tuple[str, str]:
    """Where a version is mounted, and which group is seen there as the top."""
    with contextlib.suppress(OSError):
        for mount in mounts(os.path.join(proc, "self", "mountinfo")):
            if mount.kind == "cgroup2" if version is _V2 else mount.kind == "cgroup" and "memory" in mount.options:
                return mount.place, mount.root
    return version.place, "/"


def _left(folder: str, version: _Version) -> int | None:
    try:
        return int(_read(folder, version.limit)) - int(_read(folder, version.used))
    except (OSError, ValueError):  # no controller here, or "max": no limit
        return None


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
