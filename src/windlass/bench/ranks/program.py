"""What every rank program does around its work: who it is, what it tells first, how it says that something is wrong."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.bench.lines import Teller
from windlass.errors import WindlassError

# What decides the speed of collectives and threads. Everything else stays unsaid: an environment holds secrets.
_ALLOWED = re.compile(
    r"\A(NCCL_|RCCL_|CCL_|FI_|GLOO_|UCX_|HSA_|ZE_|ROCR_VISIBLE|HIP_VISIBLE|CUDA_VISIBLE|CUDA_DEVICE_(MAX|ORDER)|MIOPEN_"
    r"|MPICH_|OMP_(NUM|PROC|PLACES)|MKL_NUM|KMP_|TORCH_NCCL_|TORCH_CUDNN_|PYTORCH_\w*ALLOC_CONF|NVIDIA_TF32)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Who this process is among the ranks."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def first(self) -> bool:
        return self.rank == 0


def my_place() -> Place:
    """From the variables that every torch launcher sets; alone where there are none."""
    return Place(
        rank=int(os.environ.get("RANK", "0")),
        size=int(os.environ.get("WORLD_SIZE", "1")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )


def allowed_environment() -> dict[str, str]:
    """The variables that decide the speed, none that may hold a secret."""
    return {k: v for k, v in sorted(os.environ.items()) if _ALLOWED.match(k) and not _SECRET.search(k)}


def about_torch(device: Any, backend: str | None) -> dict[str, Any]:
    """Device and software of this rank, for the record."""
    from windlass.bench.train.environment import software

    versions = software()
    if device.kind == "cuda" and backend == "nccl":
        import torch

        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {
        "device": {
            "kind": device.kind,
            "vendor": device.vendor,
            "name": device.name if device.kind != "cpu" else f"CPU ({platform.machine()})",
            "memory_bytes": device.memory_bytes,
        },
        "software": versions,
        "environment": allowed_environment(),
        "backend": backend,
    }


def guarded(work: Callable[[Sequence[str], Teller], None], argv: Sequence[str]) -> int:
    """Run a rank's work; an expected failure is told as a message, and its exit code returned."""
    teller = Teller()
    try:
        work(argv, teller)
    except WindlassError as error:
        teller.tell("error", message=error.message, hint=error.hint, code=error.exit_code, rank=my_place().rank)
        sys.stderr.write(f"error: {error.message}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0
