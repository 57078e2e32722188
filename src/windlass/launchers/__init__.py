"""Launchers: what starts one process per rank on the nodes of an allocation. One row per backend."""

from __future__ import annotations

from importlib import import_module

from windlass.errors import unknown_name
from windlass.launchers.base import Launcher

_BACKENDS = {
    "srun": ("windlass.launchers.srun", "Srun"),
    "pals": ("windlass.launchers.pals", "Pals"),
    "hydra": ("windlass.launchers.hydra", "Hydra"),
    "openmpi": ("windlass.launchers.openmpi", "OpenMpi"),
    "flux": ("windlass.launchers.flux", "FluxRun"),
    "local": ("windlass.launchers.local", "Local"),
}


def launcher_names() -> tuple[str, ...]:
    return tuple(_BACKENDS)


def get_launcher(name: str) -> Launcher:
    """The backend of this name; an unknown name is a `UsageError` with the nearest one."""
    if name not in _BACKENDS:
        raise unknown_name("launcher", name, _BACKENDS)
    module, attribute = _BACKENDS[name]
    backend: Launcher = getattr(import_module(module), attribute)()
    return backend
