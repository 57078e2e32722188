"""Container runtimes, which start the user's command in an image. One table row per backend."""

from __future__ import annotations

from importlib import import_module

from windlass.backends.containers.base import Runtime
from windlass.errors import unknown_name

_BACKENDS = {
    "apptainer": ("windlass.backends.containers.apptainer", "Apptainer"),
    "singularity": ("windlass.backends.containers.apptainer", "Singularity"),
    "podman-hpc": ("windlass.backends.containers.podman_hpc", "PodmanHpc"),
    "shifter": ("windlass.backends.containers.shifter", "Shifter"),
    "edf": ("windlass.backends.containers.edf", "ContainerEngine"),
    "pyxis": ("windlass.backends.containers.pyxis", "Pyxis"),
    "charliecloud": ("windlass.backends.containers.charliecloud", "Charliecloud"),
}


def runtime_names() -> tuple[str, ...]:
    return tuple(_BACKENDS)


def get_runtime(name: str) -> Runtime:
    """Return the backend of this name. An unknown name raises a `UsageError` that suggests the nearest one."""
    if name not in _BACKENDS:
        raise unknown_name("container runtime", name, _BACKENDS)
    module, attribute = _BACKENDS[name]
    backend: Runtime = getattr(import_module(module), attribute)()
    return backend
