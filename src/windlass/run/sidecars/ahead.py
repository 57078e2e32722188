"""Record what the imports of a script read before its first run, in the background of `windlass submit`.

A separate process imports the modules that the script's import statements name, through a view of the cache's roots. It
never runs the script or a module of its folder. It uses one core at the lowest priority, for at most two minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from windlass.base.procs.command import own_argv, which
from windlass.base.settings import current_environ, read_settings
from windlass.errors import WindlassError
from windlass.model.plan import Plan
from windlass.node.sys.atomic import open_append, take_lock
from windlass.run.script import read_script
from windlass.run.sidecars.traces import environment_identity, record_trace, trace_path

_TIMEOUT_S = 120.0
_IMPORTS_S = 90.0
"""No new import starts later. The rest is for the import that runs then, and for writing the trace."""
_MAX_MEMORY = 8 << 30
_MAX_STATEMENTS = 500
_IMPORT = """
import importlib, json, sys, time
sys.path[:] = [path for path in sys.path if path]
end = time.monotonic() + float(sys.argv[1])
for statement in json.loads(sys.argv[2]):
    if time.monotonic() > end:
        break
    module, _, name = statement.partition(":")
    try:
        found = importlib.import_module(module)
        if name and name != "*" and not hasattr(found, name):
            importlib.import_module(module + "." + name)
    except BaseException:  # without a device, for example: what the import has read until then counts
        pass
"""


def record_ahead(plan: Plan, environ: Mapping[str, str]) -> str:
    """Start the recording of a plan's imports if its cache has no trace yet. Returns why not; empty if it was started.

    The recording goes on after this process has ended.
    """
    cache, traces = plan.cache, read_settings(environ).traces_dir
    if cache is None or not cache.trace or cache.placement != "replicate" or not cache.variables:
        return "the plan records no trace"
    if not cache.ahead:
        return f"{plan.site} allows no imports on its login nodes"
    statements = read_script(plan.request).statements[:_MAX_STATEMENTS]
    python = which(plan.command[0], environ)
    if not statements or python is None:
        return "the imports of the command or its Python are not known here"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "this machine has no /dev/fuse"
    roots = [root.path for root in cache.roots]
    try:
        if trace_path(traces, environment_identity(roots)).exists():
            return "there is a trace"
        traces.mkdir(mode=0o700, parents=True, exist_ok=True)
        _start({"roots": roots, "python": python, "statements": statements, "traces": str(traces)}, environ)
    except (WindlassError, OSError) as error:
        return str(error)
    return ""


def _start(settings: dict[str, object], environ: Mapping[str, str]) -> None:
    with open_append(f"{settings['traces']}/ahead.log", fresh=True) as log:
        subprocess.Popen(
            [*own_argv(__name__), json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environ),
            cwd="/",
            start_new_session=True,
        )


def main(argv: list[str]) -> int:
    """Record in this process. At most one such process of a user works at a time; a second one ends at once."""
    settings = json.loads(argv[0])
    traces = Path(settings["traces"])
    os.nice(19)
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    with contextlib.suppress(ValueError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))
    try:
        lock = take_lock(str(traces / "ahead.lock"))
    except OSError:
        return 0
    command = (settings["python"], "-c", _IMPORT, str(_IMPORTS_S), json.dumps(settings["statements"]))
    try:
        record_trace(settings["roots"], command, current_environ(), traces, _TIMEOUT_S, partial=True)
    except WindlassError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
