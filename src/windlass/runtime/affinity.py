"""The CPU mask of this process: some builds of torch (through their OpenMP) narrow it while being imported.

Ranks then share one core with their own data workers, and nothing but the speed shows it.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from windlass.base.notation.cpulist import parse_cpulist


def import_keeping_affinity(name: str, bound_to: str | None = None) -> tuple[ModuleType, bool]:
    """Import `name`; the mask of the calling thread is then what it was before (or `bound_to`, a CPU list).

    Returns the module and whether the mask had to be put back. `bound_to` covers a module that was imported earlier:
    it is what the launcher bound this rank to.
    """
    if not hasattr(os, "sched_getaffinity"):
        return importlib.import_module(name), False
    before = os.sched_getaffinity(0)
    wanted = set(parse_cpulist(bound_to)) if bound_to else before
    module = importlib.import_module(name)
    if os.sched_getaffinity(0) == wanted:
        return module, False
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:
        # The launcher's list and the cgroup disagree: what the kernel allows is the truth, keep it.
        return module, False
    return module, True
