"""How much memory a rank may take for its buffers, so that a size that does not fit is skipped and not killed."""

from __future__ import annotations

from typing import Any

from windlass.node.sys.memory import memory_left


def free_bytes(device: Any, local_ranks: int) -> int:
    """Free memory of the device; of the node, divided by its ranks, where the device is the CPU."""
    if device.kind == "cpu":
        return memory_left() // max(1, local_ranks)
    import torch

    module: Any = getattr(torch, device.kind)
    try:
        return int(module.mem_get_info()[0])
    except (RuntimeError, AttributeError):  # some XPU drivers do not tell
        return int(device.memory_bytes) - int(module.memory_reserved())
