"""Common code of all rank programs: identity, first message, error report and exit."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import windlass
from windlass.bench.messages import ResultWriter
from windlass.errors import MachineError, WindlassError

# Variables that influence the speed of collectives and threads. All others are omitted, because an environment can
# contain secrets.
_ALLOWED = re.compile(
    r"\A(NCCL_|RCCL_|CCL_|FI_|GLOO_|UCX_|HSA_|ZE_|ROCR_VISIBLE|HIP_VISIBLE|CUDA_VISIBLE|CUDA_DEVICE_(MAX|ORDER)|MIOPEN_"
    r"|MPICH_|OMP_(NUM|PROC|PLACES)|MKL_NUM|KMP_|TORCH_NCCL_|TORCH_CUDNN_|PYTORCH_\w*ALLOC_CONF|NVIDIA_TF32)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The identity of this process among the ranks, and their rendezvous (None: without a launcher)."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    rendezvous: tuple[str, int] | None

    @property
    def first(self) -> bool:
        return self.rank == 0


def read_world(environ: Mapping[str, str] | None = None) -> World:
    """Read the variables that every torch launcher sets. Without them, return a single rank."""
    env = os.environ if environ is None else environ
    port = env.get("MASTER_PORT")
    return World(
        rank=int(env.get("RANK", "0")),
        size=int(env.get("WORLD_SIZE", "1")),
        local_rank=int(env.get("LOCAL_RANK", "0")),
        local_size=int(env.get("LOCAL_WORLD_SIZE", "1")),
        rendezvous=(env.get("MASTER_ADDR", "localhost"), int(port)) if port else None,
    )


def allowed_environment() -> dict[str, str]:
    """Return the variables that influence the speed, without those that may contain a secret."""
    return {k: v for k, v in sorted(os.environ.items()) if _ALLOWED.match(k) and not _SECRET.search(k)}


def software() -> dict[str, str | None]:
    """Return the versions of all software that influences the speed.

    It contains no environment variables, because they can contain secrets.
    """
    import torch

    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {
        "windlass": windlass.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": None if cudnn is None else str(cudnn),
    }


def about_torch(device: Any, backend: str | None) -> dict[str, Any]:
    """Return device and software of this rank, for the record."""
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


def run_program(program: str, values: dict[str, Any]) -> int:
    """Run a rank's program and return its exit code. A Python without torch gives a clear error message."""
    try:
        code: int = import_module(f"windlass.bench.{program}.rank").main(values)
        return code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        return guarded(_without_torch)


def _without_torch(_: ResultWriter) -> None:
    raise MachineError(
        f"{sys.executable} has no torch, which this benchmark measures",
        hint=f"install it there ({sys.executable} -m pip install torch), or name an interpreter that has it with "
        "--python or --activate",
    )


def guarded(work: Callable[[ResultWriter], None]) -> int:
    """Run a rank's work. Send an expected failure as a message and return its exit code."""
    out = ResultWriter()
    try:
        work(out)
    except WindlassError as error:
        out.send("error", message=error.message, hint=error.hint, code=error.exit_code, rank=read_world().rank)
        write_error(error)
        return error.exit_code
    return 0


def write_error(error: WindlassError) -> None:
    sys.stderr.write(f"error: {error.message}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))


def leave(code: int) -> NoReturn:
    """End this process now, after all messages are sent and the groups are closed.

    Only threads of gloo remain. On a busy machine they abort three of a hundred ranks that exit in the usual way.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
