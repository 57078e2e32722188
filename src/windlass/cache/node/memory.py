"""How much memory this node could still give away: the machine's, or what the batch system left this job of it."""

from __future__ import annotations

import os

_GROUPS = "/sys/fs/cgroup"


def memory_left(proc: str = "/proc", groups: str = _GROUPS) -> int:
    """Bytes; 0 where nobody knows."""
    left = [found for found in (_machine(proc), *_control_groups(proc, groups)) if found is not None]
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


def _control_groups(proc: str, groups: str) -> list[int]:
    """What is left in the process's control group and in each one above it (version 2)."""
    try:
        with open(os.path.join(proc, "self", "cgroup"), encoding="utf-8", errors="surrogateescape") as file:
            own = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    except OSError:
        return []
    left = []
    while own.strip("/"):
        folder = os.path.join(groups, own.strip("/"))
        try:
            limit = int(_read(folder, "memory.max"))
            left.append(limit - int(_read(folder, "memory.current")))
        except (OSError, ValueError):  # no controller here, or "max": no limit
            pass
        own = os.path.dirname(own)
    return left


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
