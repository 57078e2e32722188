"""The memory that is available on this node: the machine's, or the job's share set by the batch system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from windlass.node.sys.mounts import mounts


class _Version(NamedTuple):
    """The files in which one version of control groups keeps its limit and its usage."""

    limit: str
    used: str
    place: str
    """The usual mount point."""


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "/sys/fs/cgroup/memory")
_V2 = _Version("memory.max", "memory.current", "/sys/fs/cgroup")


def memory_left(proc: str = "/proc") -> int:
    """Return the available bytes, or 0 if unknown."""
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
    """Yield the available bytes of the process's control group and of each group above it.

    Reads both versions, because a machine may account for memory in either.
    """
    for version, path in _own_groups(proc):
        top, above = _mounted(proc, version)
        # In a container the path may be the host's. Then only the mounted group is visible here.
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
    """Return the mount point of a version and the group that is mounted there."""
    with contextlib.suppress(OSError):
        for mount in mounts(os.path.join(proc, "self", "mountinfo")):
            if mount.kind == "cgroup2" if version is _V2 else mount.kind == "cgroup" and "memory" in mount.options:
                return mount.place, mount.root
    return version.place, "/"


def _left(folder: str, version: _Version) -> int | None:
    try:
        return int(_read(folder, version.limit)) - int(_read(folder, version.used))
    except (OSError, ValueError):  # no controller here, or the value "max", which means no limit
        return None


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
