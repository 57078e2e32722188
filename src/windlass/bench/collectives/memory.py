"""How much memory a rank may take for its buffers, so that a size that does not fit is skipped and not killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def free_bytes(device: Any, local_ranks: int) -> int:
    """Free memory of the device; of the node, divided by its ranks, where the device is the CPU."""
    if device.kind == "cpu":
        return host_free_bytes() // max(1, local_ranks)
    import torch

    module: Any = getattr(torch, device.kind)
    try:
        return int(module.mem_get_info()[0])
    except (RuntimeError, AttributeError):  # some XPU drivers do not tell
        return int(device.memory_bytes) - int(module.memory_reserved())


def host_free_bytes() -> int:
    """What the kernel would give without swapping, and not more than the job's cgroup allows."""
    free = 1 << 62
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    return min(free, _cgroup_room())


def _cgroup_room() -> int:
    room = 1 << 62
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
    except OSError:
        return room
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    for place in (folder, *folder.parents):
        try:
            limit, used = (place / "memory.max").read_text().strip(), (place / "memory.current").read_text()
        except OSError:
            continue
        if limit.isdecimal():
            room = min(room, max(0, int(limit) - int(used)))
    return room
