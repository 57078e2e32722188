"""How windlass starts itself again: in a job, on a node, in a process that can be ended."""

from __future__ import annotations

import os
import sys

import windlass

ZIP_MARK = "windlass-zipapp"
"""A file beside the package where a zip application unpacked itself; only its own `__main__.py` finds its modules."""


def own_argv(module: str = "windlass") -> tuple[str, ...]:
    """The argv that runs a module of windlass; its arguments follow. Unlike `python -m`, it imports nothing from the
    current folder."""
    package = os.path.dirname(os.path.abspath(windlass.__file__))
    folder = os.path.dirname(package)
    if os.path.exists(os.path.join(folder, ZIP_MARK)):
        return (sys.executable, os.path.join(folder, "__main__.py"), "-m", module)
    return (sys.executable, os.path.join(package, "start.py"), module)
