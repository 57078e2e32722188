"""How much memory a rank may take for its buffers, so that a size that does not fit is skipped and not killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.node.sys.reading import read_text


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
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    return min(free, _cgroup_room())


def _cgroup_room() -> int:
    room = 1 << 62
    try:
        group = read_text("/proc/self/cgroup").rpartition("::")[2].strip()
    except OSError:
        return room
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    for place in (folder, *folder.parents):
        try:
            limit, used = read_text(place / "memory.max").strip(), read_text(place / "memory.current")
        except OSError:
            continue
        if limit.isdecimal():
            room = min(room, max(0, int(limit) - int(used)))
    return room
