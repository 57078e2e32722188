"""Schedulers, which allocate nodes. One table row per backend."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from windlass.backends.schedulers.base import Scheduler
from windlass.errors import unknown_name

_BACKENDS = {
    "slurm": ("windlass.backends.schedulers.slurm", "Slurm"),
    "pbs": ("windlass.backends.schedulers.pbs", "Pbs"),
    "flux": ("windlass.backends.schedulers.flux", "Flux"),
    "none": ("windlass.backends.schedulers.none", "NoScheduler"),
}


def scheduler_names() -> tuple[str, ...]:
    return tuple(_BACKENDS)


def get_scheduler(name: str) -> Scheduler:
    """Return the backend of this name. An unknown name raises a `UsageError` that suggests the nearest one."""
    if name not in _BACKENDS:
        raise unknown_name("scheduler", name, _BACKENDS)
    module, attribute = _BACKENDS[name]
    backend: Scheduler = getattr(import_module(module), attribute)()
    return backend


def scheduler_of_job(environ: Mapping[str, str]) -> str | None:
    """The scheduler whose job this process runs in, or None outside a job. Uses only the environment variables."""
    return next((n for n in _BACKENDS if n != "none" and get_scheduler(n).in_allocation(environ)), None)
