"""`--cache auto`: the folders that the interpreter in use reads, as the interpreter itself reports them."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

import msgspec

from windlass.base.procs.command import run_command, which
from windlass.errors import UsageError, WindlassError
from windlass.model.finding import Finding
from windlass.model.request import AUTO, SITE_CACHES, Request
from windlass.model.site import Site
from windlass.node.sys.reading import open_plain
from windlass.plan.cache import is_below

_ASK_S = 30.0
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/run")
# Editable installs of setuptools create either a path in a .pth file, which is then in sys.path, or a finder with a
# map.
_QUESTION = """
import sys
sys.path[:] = [path for path in sys.path if path]  # `-c` puts the current folder first
import json, os
paths = list(sys.path)
for name, module in list(sys.modules.items()):
    if name.startswith("__editable__"):
        for place in getattr(module, "MAPPING", {}).values():
            paths.append(os.path.dirname(place))
        for places in getattr(module, "NAMESPACES", {}).values():
            paths += places
print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, paths]))
"""
_HINT = "name the folders that the ranks read: --cache PATH"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportFolders:
    """Folders that an interpreter reads: its environment, the base environment, and the other folders of its path."""

    prefixes: tuple[str, ...]
    paths: tuple[str, ...]


def with_auto_cache(
    request: Request, python: str, site: Site, environ: Mapping[str, str]
) -> tuple[Request, Finding | None]:
    """Replace `auto` in the request with folders, and return a note that names them.

    `python` runs the script if the command does not name another interpreter. Raises `UsageError` if the folders cannot
    be determined from here, or if no folder is found.
    """
    engine = next((name for name in SITE_CACHES if name in request.cache), None)
    if engine is not None:
        paths = tuple(path for path in request.cache if path != engine)
        request, note = with_auto_cache(msgspec.structs.replace(request, cache=paths), python, site, environ)
        return _with_site_cache(request, engine, site, environ), note
    if AUTO not in request.cache:
        return request, None
    named = tuple(path for path in request.cache if path != AUTO)
    request = msgspec.structs.replace(request, cache=named)
    if request.container:
        raise UsageError("--cache auto cannot see which Python runs inside the container", hint=_HINT)
    python = _python_in_use(request, python, environ)
    folders = ask_python(python, request, environ)
    roots, left_out = choose_roots(folders, _own_files(request), (*_SYSTEM, *site.file.storage.system))
    if not roots and not named:
        raise UsageError(
            f"--cache auto: {python} imports only the machine's own software, which needs no cache", hint=_HINT
        )
    text = f"--cache auto: {', '.join(roots)}"
    if left_out:
        text += f"; not {', '.join(left_out)}, which contains the script and may be written to"
    return msgspec.structs.replace(request, cache=(*named, *roots)), Finding("auto-cache", "note", text)


def _with_site_cache(request: Request, engine: str, site: Site, environ: Mapping[str, str]) -> Request:
    """Import the packages of the cache's folders through the mount of the site's cache, as its documents do by hand."""
    mount = site.file.storage.caches.get(engine)
    if mount is None:
        raise UsageError(f"--cache {engine}: {site.name} has none", hint="windlass's own cache: --cache auto or PATH")
    if request.container or not request.cache:
        hint = "name the environment too, and no container: --cache ENV"
        raise UsageError(f"--cache {engine}: no folder of packages to read through it", hint=hint)
    folders = [str(found) for root in request.cache for found in _package_folders(Path(root))]
    user = environ.get("USER") or pwd.getpwuid(os.getuid()).pw_name
    mount = Template(mount).safe_substitute(USER=user)
    prepended = tuple(("PYTHONPATH", mount + path) for path in reversed(folders))
    return msgspec.structs.replace(
        request, cache=(), options=(*request.options, engine), env_prepend=(*prepended, *request.env_prepend)
    )


def _package_folders(root: Path) -> list[Path]:
    """Return the packages' folder of an environment. Another folder contains packages itself."""
    return sorted(root.glob("lib/python3*/site-packages")) or [root]


def _python_in_use(request: Request, python: str, environ: Mapping[str, str]) -> str:
    """Return the interpreter that the ranks will use, as a program that can run here."""
    word = request.command[0] if request.kind == "command" and request.command else ""
    python = word if Path(word).name.startswith("python") else _first_line_python(word, environ) or python
    found = python if "/" in python else which(python, environ)
    if found is None:
        raise UsageError(f"--cache auto: {python} exists only in the job", hint=_HINT)
    return found


def _first_line_python(word: str, environ: Mapping[str, str]) -> str | None:
    """Return the interpreter of a script in `bin`, such as `accelerate`. None for other programs."""
    path = which(word, environ) if word else None
    if path is None:
        return None
    try:
        with open_plain(path, follow=True) as stream:
            first = stream.read(512).split(b"\n")[0].decode(errors="replace")
    except OSError:
        return None
    interpreter = first[2:].strip().split(" ")[0] if first.startswith("#!/") else ""
    return interpreter if Path(interpreter).name.startswith("python") else None


def ask_python(python: str, request: Request, environ: Mapping[str, str]) -> ImportFolders:
    """Ask the interpreter for its folders, with the variables that the ranks will have."""
    env = dict(environ) | dict(request.env)
    for name, value in request.env_prepend:
        env[name] = f"{value}:{env[name]}" if env.get(name) else value
    try:
        done = run_command((python, "-c", _QUESTION), timeout_s=_ASK_S, env=env, cwd=request.cwd or "/")
        *prefixes, paths = json.loads(done.stdout.splitlines()[-1])
    except (WindlassError, ValueError, IndexError) as error:
        raise UsageError(f"--cache auto: {python} cannot list its import folders: {error}", hint=_HINT) from error
    return ImportFolders(prefixes=tuple(dict.fromkeys(prefixes)), paths=tuple(dict.fromkeys(paths)))


def choose_roots(
    folders: ImportFolders, own_files: Iterable[str], system: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders to share, and the folders left out because they contain the user's own files.

    No returned folder is inside another. Folders with the user's files are left out because the view is read-only and a
    script may write to its own directory. The machine's system software is not shared either.
    """
    machine, own = tuple(system), tuple(own_files)
    wanted = [path for path in (*folders.prefixes, *folders.paths) if Path(path).is_dir() and path != "/"]
    wanted = [path for path in dict.fromkeys(wanted) if not any(is_below(path, each) for each in machine)]
    left_out = [p for p in wanted if p not in folders.prefixes and any(is_below(file, p) for file in own)]
    kept = [path for path in wanted if path not in left_out]
    outermost = [p for p in kept if not any(is_below(p, other) and p != other for other in kept)]
    return tuple(outermost), tuple(left_out)


def _own_files(request: Request) -> tuple[str, ...]:
    """Return the working directory of the job and its script."""
    cwd = Path(request.cwd or Path.cwd())
    script = (str(cwd / request.command[0]),) if request.kind == "script" and request.command else ()
    return (str(cwd), *script)
