"""The memory that a rank may use for its buffers. A size that does not fit is skipped, so no rank is killed."""

from __future__ import annotations

from typing import Any

from windlass.node.sys.memory import memory_left


def free_bytes(device: Any, local_ranks: int) -> int:
    """Return the free memory of the device. For the CPU, return the node's free memory divided by its ranks."""
    if device.kind == "cpu":
        return memory_left() // max(1, local_ranks)
    import torch

    module: Any = getattr(torch, device.kind)
    try:
        return int(module.mem_get_info()[0])
    except (RuntimeError, AttributeError):  # some XPU drivers do not report it
        return int(device.memory_bytes) - int(module.memory_reserved())
