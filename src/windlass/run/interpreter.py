"""Choose the Python for the user's script: named or activated by the user, of the site, or the first in PATH.

Also finds the file system of the ranks' environment and measures its latency. Every check has a deadline, because a
file system may be slow or not respond.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from windlass.base.procs.command import which
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.model.request import AUTO, SITE_CACHES, Request
from windlass.model.site import Site
from windlass.node.sys.mounts import mount_of, mounts
from windlass.node.sys.reading import open_plain
from windlass.plan.cache import is_below
from windlass.plan.inputs import EnvironmentPlace
from windlass.run.script import Script, read_script

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w{1,100})")


def check_python(request: Request, node_local: tuple[str, ...] = ()) -> None:
    """Check that an interpreter given by its path exists here, where the ranks will run.

    Paths in one of the `node_local` folders are not checked, because they are not visible from here.
    """
    path = request.python
    if path is not None and any(is_below(path, folder) for folder in node_local):
        return
    if path is not None and "/" in path and not os.access(path, os.X_OK):
        what = "cannot be executed" if is_here(path) else "does not exist"
        raise UsageError(f"--python {path} {what}", hint="give the path of an interpreter, e.g. .venv/bin/python")


def is_here(path: str | Path) -> bool:
    """Return whether a path exists, as far as this user's permissions show."""
    return os.access(path, os.F_OK)


def activate_kind(request: Request) -> str | None:
    """Return `venv` or `conda` for the environment of --activate, or `unseen` if it is not visible from here."""
    if request.activate is None:
        return None
    folder = Path(request.activate)
    if is_here(folder / "conda-meta"):
        return "conda"
    return "venv" if is_here(folder / "bin" / "activate") else "unseen"


def check_activate(request: Request, node_local: tuple[str, ...] = ()) -> None:
    """Check that --activate names an environment that exists here or is in one of the `node_local` folders."""
    path = request.activate
    if path is None or activate_kind(request) != "unseen" or any(is_below(path, folder) for folder in node_local):
        return
    what = "neither a virtual environment nor a conda environment" if is_here(path) else "does not exist here"
    raise UsageError(f"--activate {path}: {what}", hint="give the folder that contains bin/python")


def find_python(
    request: Request, site: Site, environ: Mapping[str, str], script: Script | None = None
) -> tuple[str, str]:
    """Return the interpreter for a script, and the reason. Reads the script if the caller has not.

    The Python that the user named or activated has priority. Next is the Python of a module that the plan loads: it is
    returned by name, so that the job finds it after loading. The environment of windlass is used only if it has the
    modules that the script imports.
    """
    if request.python:
        return request.python, "--python"
    if request.activate:
        return str(Path(request.activate) / "bin" / "python"), "of the environment that --activate names"
    own = sys.prefix if sys.prefix != sys.base_prefix else None
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable)
        candidate = Path(prefix or "/nonexistent") / "bin" / "python"
        if is_here(candidate) and not _same(prefix, own):
            return str(candidate), f"of the active environment ({variable})"
    for root in (root for root in request.cache if root not in (AUTO, *SITE_CACHES)):
        if is_here(Path(root) / "pyvenv.cfg") or is_here(Path(root) / "conda-meta"):
            return str(Path(root) / "bin" / "python"), "of the environment that --cache names"
    script = script or read_script(request)
    missing = missing_imports(request, script) if own else ()
    has = ", which has what the script imports" if own and script.packages is not None else ""
    active = _same(environ.get("VIRTUAL_ENV"), own)
    if active and not missing:
        return sys.executable, f"of the active environment (VIRTUAL_ENV){has}"
    module = python_module(request, site)
    if module is not None:
        return module
    if active:
        return sys.executable, f"of the active environment (VIRTUAL_ENV); it has no {missing[0]}"
    if own and not missing:
        return sys.executable, f"of the environment that windlass is installed in{has}"
    found = which("python3", environ) or which("python", environ)
    return (found, "first in PATH") if found else (sys.executable, "the one that runs windlass")


def python_module(request: Request, site: Site) -> tuple[str, str] | None:
    """Return the Python of a module that the plan loads, by its name in the job, and the reason. None without one."""
    if request.container:
        return None
    named = {name.split("/", 1)[0] for name in request.modules}
    for spec in site.file.modules:
        loads = {name.split("/", 1)[0] for name in spec.load}
        if spec.python and ((spec.default and not request.no_modules) or loads & named):
            return spec.python, f"of the site's module {spec.load[-1]}, found in the job after it is loaded"
    return None


def missing_imports(request: Request, script: Script | None = None) -> tuple[str, ...]:
    """Return the imports of the script that this interpreter lacks. For an unreadable script, check torch only."""
    names = (script or read_script(request)).packages
    if names is None:
        names = ("torch",)
    return tuple(name for name in names if not _has(name))


def missing_module_hint(plan: Plan, said: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    """Return which Python lacked the module that a rank reported as missing, and which Python here has it."""
    found = next((match for line in said if (match := _NO_MODULE.search(line))), None)
    if found is None or not plan.interpreter_because:
        return None
    name, used = found[1], plan.command[0]
    near = [environ.get("VIRTUAL_ENV"), environ.get("CONDA_PREFIX"), f"{plan.request.cwd}/.venv", sys.prefix]
    near += [str(Path(path).parent.parent) for path in (which("python3", environ), which("python", environ)) if path]
    pythons = (f"{prefix}/bin/python3" for prefix in near if prefix and _holds(Path(prefix), name))
    other = next((path for path in pythons if path != used and os.access(path, os.X_OK)), None)
    has = (
        f"{other} has it: --python {other}" if other else "install it there, or give another interpreter with --python"
    )
    return f"the ranks used {used} ({plan.interpreter_because}), which has no {name}; {has}"


def _holds(prefix: Path, name: str) -> bool:
    with contextlib.suppress(OSError):
        return any(True for folder in ("site", "dist") for _ in prefix.glob(f"lib*/python3*/{folder}-packages/{name}"))
    return False


def _has(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _same(prefix: str | None, own: str | None) -> bool:
    return bool(prefix and own) and os.path.realpath(prefix or "") == os.path.realpath(own or "")


_DEADLINE_S = 0.08
_FILES = 12


@dataclass(slots=True)
class _Scan:
    """Results of the scan so far. One thread adds to them, another reads them after the deadline."""

    real: str = ""
    stats_s: list[float] = field(default_factory=list)
    opens_s: list[float] = field(default_factory=list)


def environment_place(python: str, look: Callable[[Path, _Scan], None] | None = None) -> EnvironmentPlace | None:
    """Return the location of an interpreter's environment. The scan has a deadline.

    Returns None for a bare name, which can mean another interpreter in the job. If the file system does not respond,
    the scan continues in a separate thread.
    """
    if "/" not in python:
        return None
    prefix = Path(python).parent.parent
    seen = _Scan()
    thread = threading.Thread(target=look or _look, args=(prefix, seen), name="environment", daemon=True)
    thread.start()
    thread.join(_DEADLINE_S)
    stats_s, opens_s = list(seen.stats_s), list(seen.opens_s)
    mount = mount_of(seen.real or str(prefix), mounts())
    return EnvironmentPlace(
        path=str(prefix),
        file_system=mount.kind,
        shared=mount.served_by == "shared",
        stat_ms=_milliseconds(stats_s),
        open_ms=_milliseconds(opens_s),
        answered=not thread.is_alive() or bool(opens_s),
    )


def _milliseconds(seconds: list[float]) -> float | None:
    """Return the median. Importing `statistics` takes longer than the rest of this module."""
    return round(1000 * sorted(seconds)[len(seconds) // 2], 3) if seconds else None


def _look(prefix: Path, seen: _Scan) -> None:
    """Measure the time to look up a few files of the environment and to read the first byte of each."""
    try:
        seen.real = os.path.realpath(prefix)
        end = time.monotonic() + _DEADLINE_S
        for path in itertools.islice(_files(Path(seen.real)), _FILES):
            began = time.monotonic()
            if began > end:
                return
            path.stat()
            seen.stats_s.append(time.monotonic() - began)
            began = time.monotonic()
            with open_plain(path, follow=True) as stream:
                stream.read(1)
            seen.opens_s.append(time.monotonic() - began)
    except OSError:
        return


def _files(prefix: Path) -> itertools.chain[Path]:
    """Return modules of the installed packages, in directory order."""
    folders = sorted(prefix.glob("lib/python3*/site-packages")) or sorted(prefix.glob("lib/python3*"))
    return itertools.chain.from_iterable(folder.glob("*/__init__.py") for folder in folders)
