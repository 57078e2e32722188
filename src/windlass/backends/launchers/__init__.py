"""Launchers, which start one process per rank on the nodes of an allocation. One table row per backend."""

from __future__ import annotations

import re
from importlib import import_module

from windlass.backends.launchers.base import Launcher
from windlass.errors import unknown_name

_BACKENDS = {
    "srun": ("windlass.backends.launchers.srun", "Srun"),
    "pals": ("windlass.backends.launchers.pals", "Pals"),
    "hydra": ("windlass.backends.launchers.hydra", "Hydra"),
    "openmpi": ("windlass.backends.launchers.openmpi", "OpenMpi"),
    "flux": ("windlass.backends.launchers.flux", "FluxRun"),
    "local": ("windlass.backends.launchers.local", "Local"),
}

_MPIEXEC = (
    ("pals", re.compile(r"/pals/|\bPALS\b")),
    ("openmpi", re.compile(r"Open ?RTE|Open MPI|PRRTE")),
    ("hydra", re.compile(r"HYDRA|Intel\(R\) MPI")),  # Intel MPI uses hydra with a different version text
)


def mpiexec_kind(path: str, version: str) -> str | None:
    """Identify an mpiexec by its path, with symbolic links resolved, and by its --version output."""
    return next((name for name, sign in _MPIEXEC if sign.search(f"{path}\n{version}")), None)


def launcher_names() -> tuple[str, ...]:
    return tuple(_BACKENDS)


def get_launcher(name: str) -> Launcher:
    """Return the backend of this name. An unknown name raises a `UsageError` that suggests the nearest one."""
    if name not in _BACKENDS:
        raise unknown_name("launcher", name, _BACKENDS)
    module, attribute = _BACKENDS[name]
    backend: Launcher = getattr(import_module(module), attribute)()
    return backend
