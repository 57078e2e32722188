"""What software a measurement ran on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

import windlass
from windlass.errors import CommandError
from windlass.procs.command import run_command


def software() -> dict[str, str | None]:
    """Versions of everything that decides the speed; nothing of the environment's variables, which hold secrets."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {
        "windlass": windlass.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": None if cudnn is None else str(cudnn),
    }


def _commit() -> str | None:
    """The commit of this checkout, None where it is an installed package."""
    argv = ("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD")
    try:
        return run_command(argv, timeout_s=10).stdout.strip()
    except CommandError:
        return None
