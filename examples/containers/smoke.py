"""One line per node, from inside the container: how many devices torch sees, and which of the given paths are there.

windlass run --container IMAGE --ranks-per-node 1 --show all smoke.py /opt/cray /pfs
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def devices() -> str:
    try:
        import torch
    except ImportError:
        return "no torch in this image"
    kind = "xpu" if torch.xpu.is_available() else "cuda"
    return f"torch {torch.__version__} sees {getattr(torch, kind).device_count()} devices"


host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
missing = [path for path in sys.argv[1:] if not Path(path).exists()]
there = f"{len(sys.argv) - 1 - len(missing)} of {len(sys.argv) - 1} paths"
print(f"{host}: {devices()}; {there}{', without ' + ' '.join(missing) if missing else ''}", flush=True)
sys.exit(1 if missing else 0)
