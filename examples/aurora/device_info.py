"""What torch sees on a node: 12 tiles, 6 cards, or no accelerator at all.

windlass run --show all device_info.py
"""

from __future__ import annotations

import os

import torch

kind = next((name for name in ("xpu", "cuda") if getattr(torch, name).is_available()), "cpu")
count = getattr(torch, kind).device_count()
rank = os.environ.get("RANK", "0")
hierarchy = os.environ.get("ZE_FLAT_DEVICE_HIERARCHY", "unset")
mask = os.environ.get("ZE_AFFINITY_MASK", "unset")
print(f"rank {rank}: {count} x {kind}, ZE_FLAT_DEVICE_HIERARCHY {hierarchy}, ZE_AFFINITY_MASK {mask}", flush=True)
if kind != "cpu":
    print(f"rank {rank}: {getattr(torch, kind).get_device_properties(0)}", flush=True)
