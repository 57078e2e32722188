"""What a test needs from the machine. A missing part is a visible skip, or a failure where it was promised.

`WINDLASS_REQUIRE=slurm,mpi,fuse,containers` promises parts: continuous integration sets it, so that a test cannot
disappear unnoticed because a package went missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def required(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Names of the parts that must not be missing."""
    text = (os.environ if environ is None else environ).get("WINDLASS_REQUIRE", "")
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def require(name: str, available: bool, why: str) -> None:
    """Go on where the part is there; otherwise skip, saying why, or fail where `name` is in WINDLASS_REQUIRE."""
    if available:
        return
    if name in required():
        pytest.fail(f"{name} is required (WINDLASS_REQUIRE) but missing: {why}", pytrace=False)
    pytest.skip(f"{name} is missing: {why}", allow_module_level=True)


def missing_programs(*names: str) -> str:
    """A sentence about the programs that are not in PATH (or beside the system's daemons), empty where all are."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    missing = [name for name in names if shutil.which(name, path=path) is None]
    return f"no {', '.join(missing)} in PATH" if missing else ""


def require_slurm() -> None:
    """Debian's Slurm and munge, and root to start them."""
    why = missing_programs("slurmctld", "slurmd", "srun", "sbatch", "munged")
    if not why and os.geteuid() != 0:
        why = "only root can start slurmd"
    require("slurm", not why, why)


def hydra_mpiexec() -> Path:
    """MPICH's own mpiexec: the wheel puts it beside the interpreter."""
    return Path(sys.executable).parent / "mpiexec.hydra"


def require_mpi() -> None:
    """mpich and mpi4py from PyPI."""
    why = "" if importlib.util.find_spec("mpi4py") else "no mpi4py to import"
    if not why and not hydra_mpiexec().exists():
        why = f"no {hydra_mpiexec()} (the mpich wheel)"
    require("mpi", not why, why)


def examples_python() -> Path:
    """The interpreter with what examples/*/requirements.txt ask for, which `make test-all` installs."""
    default = Path(__file__).parents[1] / ".venv-examples" / "bin" / "python"
    return Path(os.environ.get("WINDLASS_TEST_EXAMPLES_PYTHON", default))


def require_examples() -> None:
    require("examples", examples_python().exists(), "no .venv-examples (make .venv-examples/.installed)")


def require_torch() -> None:
    require("torch", importlib.util.find_spec("torch") is not None, "no torch to import")


def require_fuse() -> None:
    """A kernel that lets this user mount by /dev/fuse."""
    device = Path("/dev/fuse")
    why = "" if device.exists() and os.access(device, os.R_OK | os.W_OK) else "no usable /dev/fuse"
    require("fuse", not why, why)


def require_containers() -> None:
    """charliecloud, and a kernel that lets this user make a user and mount namespace."""
    why = missing_programs("ch-run", "ch-convert")
    require("containers", not why, why)


def require_modules() -> None:
    """Debian's environment-modules."""
    there = any(Path(root).exists() for root in ("/usr/share/modules/init/sh", "/usr/share/Modules/init/sh"))
    require("modules", there, "no environment-modules under /usr/share/modules")
