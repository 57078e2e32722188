"""A script with all that is slow to start: a package of its own environment, a data set of many files, and a kernel
that is compiled into a cache the first time. It prints where each came from.

windlass run --cache $PWD/env --keep-caches kept train.py {view}$PWD/data
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mypackage


def compiled_kernel() -> str:
    """MIOpen on AMD's devices, Triton elsewhere: what was compiled lies in a folder of this node."""
    folder = Path(os.environ.get("MIOPEN_USER_DB_PATH") or os.environ["TRITON_CACHE_DIR"])
    kernel = folder / "kernel"
    if kernel.exists():
        return f"found in {folder}"
    if os.environ["LOCAL_RANK"] == "0":
        kernel.write_text("compiled")
    return "compiled now"


files = list(Path(sys.argv[1]).rglob("*.raw"))
seen = sum(len(path.read_bytes()) for path in files)
print(f"rank {os.environ['RANK']}: package {mypackage.__file__}", flush=True)
print(f"rank {os.environ['RANK']}: data {len(files)} files, {seen} bytes below {sys.argv[1]}", flush=True)
print(f"rank {os.environ['RANK']}: kernel {compiled_kernel()}", flush=True)
