"""What software a measurement ran on."""

from __future__ import annotations

import platform

import torch

import windlass


def software() -> dict[str, str | None]:
    """Versions of everything that decides the speed; nothing of the environment's variables, which hold secrets."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {
        "windlass": windlass.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": None if cudnn is None else str(cudnn),
    }
