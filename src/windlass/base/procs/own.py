"""How windlass starts itself again: in a job, on a node, in a process that can be ended."""

from __future__ import annotations

import os
import sys

import windlass

ZIP_MARK = "windlass-zipapp"
"""A file beside the package where a zip application unpacked itself; `python -m windlass` does not find it there."""


def own_argv(module: str = "windlass") -> tuple[str, ...]:
    """The words before the arguments of `python -m MODULE`, for a module of windlass."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(windlass.__file__)))
    if os.path.exists(os.path.join(folder, ZIP_MARK)):
        return (sys.executable, os.path.join(folder, "__main__.py"), "-m", module)
    return (sys.executable, "-m", module)
