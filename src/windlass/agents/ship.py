"""Carry the node tree to a node and start one of its programs there.

Every command that runs our code on nodes uses this module. A program is an entry `windlass.node.X:main`, which is
called with its settings. Its code is a zip file. Agents use a zip file of all of `windlass.node` in the run folder.
Where no file should be read, the command line contains the modules that the entry imports. A shell chooses a Python of
the node, so that no start reads an interpreter from the shared file system.

This module also packs our own interpreter for nodes whose Python is too old for the agent (SLES 15 has 3.6). Each node
reads one archive from the run folder once. If every agent started an interpreter from the shared file system instead,
each node would make about 600 calls to that file system.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import windlass.node
from windlass.base.notation.shell import expandable, quote
from windlass.base.procs.command import run_command
from windlass.errors import CommandError, ConfigError
from windlass.node.sys.atomic import replacing
from windlass.node.sys.messages import message_lines
from windlass.node.sys.reading import read_bytes

OLDEST = (3, 9)
NODE_PYTHONS = (
    "/usr/bin/python3",
    *(f"/usr/bin/python3.{minor}" for minor in range(14, 8, -1)),
    "/usr/local/bin/python3",
    "/opt/python/bin/python3",
)
_NODE = Path(windlass.node.__path__[0])
_IMPORT = re.compile(r"^\s*(?:from (windlass\.node[\w.]*) import (\(?[\w, ]*)|import (windlass\.node[\w.]*))", re.M)

_CHOOSE = (
    'boot=$1 last=$2; shift 2; for p in {pythons} "$last"; do '
    '[ -x "$p" ] && "$p" -I -S -c \'import sys; sys.exit(sys.version_info < {oldest})\' 2>/dev/null && '
    'exec "$p" -I -S -c "$boot" "$@"; done; {otherwise}'
    "echo '{failed}'; exit 1"
)

# Unpacks the interpreter from the archive into a directory of this user. The agent removes the directory later.
_TRAVELS = (
    'd={folder}; mkdir -p -m 700 "$d"; [ -O "$d" ] && [ ! -L "$d" ] && d=$(mktemp -d "$d/py.$$.XXXXXX") && '
    'tar -x -z -f {archive} -C "$d" && exec "$d/bin/python3" -I -S -c "$boot" "$@" "$d"; '
)

# A zip file starts with PK, which is `UEs` in base64. The file is opened once and read completely. `${NAME}` in its
# path is a variable of the node. zipimport reads the code from a memory file, so it needs no directory on disk.
_BOOT = """\
import base64, importlib, json, os, re, sys
code, entry, settings = sys.argv[1:4]
if code.startswith("UEs"):
    data = base64.b64decode(code)
else:
    path = re.sub(r"[$][{](\\w+)[}]", lambda name: os.environ.get(name[1], ""), code)
    with open(path, "rb", 0) as file:
        data = file.readall()
held = os.memfd_create("windlass-node")
os.write(held, data)
sys.path.insert(0, "/proc/self/fd/%d" % held)
module, _, name = entry.partition(":")
sys.exit(getattr(importlib.import_module(module), name)(json.loads(settings)))
"""


def tree_bytes(
    members: Mapping[str, bytes] = MappingProxyType({}),
    packages: Mapping[str, Path] = MappingProxyType({}),
    *,
    compressed: bool = True,
) -> bytes:
    """Return all of `windlass.node` as a zip file, with these additional members.

    `packages` are directories of modules by their full names. Use `compressed=False` for interpreters that may lack
    zlib.
    """
    folders = sorted({file.parent for file in _NODE.rglob("*.py")})
    if not folders:
        raise ConfigError(f"{_NODE} has no modules", hint="the windlass installation is incomplete")
    found = {
        f"{_dotted(folder)}/{file.name}": read_bytes(file, follow=True)
        for folder in folders
        for file in _modules(folder)
    }
    for name, folder in packages.items():
        found |= {f"{name.replace('.', '/')}/{file.name}": read_bytes(file, follow=True) for file in _modules(folder)}
    return _zipped(found | dict(members), compressed=compressed)


def _modules(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.py"))


def _dotted(folder: Path) -> str:
    return PurePosixPath("windlass", "node", *folder.relative_to(_NODE).parts).as_posix()


def _zipped(files: Mapping[str, bytes], *, compressed: bool = True) -> bytes:
    """Return a reproducible zip file.

    The same files give the same bytes, because no entry has a time. Directories of modules become packages.
    """
    import zipfile  # imported here because most runs carry no code

    parents = {str(parent) for name in files if "/" in name for parent in PurePosixPath(name).parents if parent.name}
    files = {f"{parent}/__init__.py": b"" for parent in sorted(parents)} | dict(files)
    stream, method = io.BytesIO(), zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return stream.getvalue()


@functools.cache
def _inline_code(module: str) -> str:
    """Return this module and the modules that it imports, as text for a command line."""
    files: dict[str, bytes] = {}
    wanted = [module]
    while wanted:
        path = wanted.pop().replace(".", "/") + ".py"
        source = _NODE.parent.parent / path
        if path not in files and source.is_file():
            files[path] = read_bytes(source, follow=True)
            wanted += _imported(files[path].decode())
    return base64.b64encode(_zipped(files)).decode()


def _imported(text: str) -> Iterator[str]:
    """Yield the names of node modules in import statements.

    A name that is imported from a package may be a module of that package.
    """
    for package, names, module in _IMPORT.findall(text):
        yield package or module
        yield from (f"{package}.{name.split()[0]}" for name in names.strip("(").split(",") if name.strip())


def program_argv(
    entry: str, settings: Mapping[str, object], *, file: str = "", pythons: Iterable[str] = NODE_PYTHONS
) -> tuple[str, ...]:
    """Return the argv that runs `entry` with these settings on a node.

    `file` is a zip file on the node that contains the code. Without it, the command line contains the code. If the node
    has no Python that is new enough, the path of the current interpreter is used.
    """
    last = os.path.realpath(sys.executable)
    return _argv(_choose(pythons), last, file or _inline_code(entry.partition(":")[0]), entry, settings)


def agent_argv(
    file: str, last_python: str, *, archive: str | None = None, folder: str = "", pythons: Iterable[str] = NODE_PYTHONS
) -> tuple[str, ...]:
    """Return the argv that runs the agent from its file.

    If the node has no Python that is new enough, the one in `archive` is unpacked below `folder`, the directory of
    agents. Without an archive, `last_python` is used.
    """
    otherwise = "" if archive is None else _TRAVELS.format(folder=expandable(folder), archive=quote(archive))
    choose = _choose(pythons, otherwise)
    return _argv(choose, "" if archive else last_python, file, "windlass.node.agent.host:main", {})


def _argv(choose: str, last: str, code: str, entry: str, settings: Mapping[str, object]) -> tuple[str, ...]:
    told = json.dumps(settings, separators=(",", ":"))
    return ("/bin/sh", "-c", choose, "windlass-node", _BOOT, last, code, entry, told)


def _choose(pythons: Iterable[str], otherwise: str = "") -> str:
    first = ".".join(str(part) for part in OLDEST)
    (failed,) = message_lines(-1, "python", {"node": -1, "failed": f"no Python from {first} on at HOST"})
    failed = failed.replace("HOST", "'\"$(uname -n)\"'")
    return _CHOOSE.format(pythons=" ".join(pythons), oldest=repr(OLDEST), otherwise=otherwise, failed=failed)


def script_text(entry: str, settings: Mapping[str, object]) -> str:
    """Return the same program as the text of a script for ranks, which run it with the user's interpreter."""
    told = (_inline_code(entry.partition(":")[0]), entry, json.dumps(settings))
    return f"import sys\nsys.argv[1:] = {told!r}\n{_BOOT}"


_STOP = (
    'f={folder}; n=; for v in {names}; do eval n=\\${{$v-}}; [ -n "$n" ] && break; done; '
    'p=$(cat "$f.$n/pid" 2>/dev/null) || exit 0; kill -TERM "$p" 2>/dev/null || exit 0; '
    't=0; while kill -0 "$p" 2>/dev/null && [ $t -lt 200 ]; do sleep 0.1; t=$((t + 1)); done; '
    '! kill -0 "$p" 2>/dev/null'
)


def stop_argv(folder: str, run_id: str, node_variables: tuple[str, ...]) -> tuple[str, ...]:
    """Return the argv that stops the agent of this run on its node and waits until the agent has ended.

    The command succeeds if no agent runs.
    """
    text = _STOP.format(names=" ".join(node_variables), folder=expandable(f"{folder}/a/{run_id}"))
    return ("/bin/sh", "-c", text, "windlass-agent")


def agent_file(folder: str, run_id: str, node: int) -> str:
    """Path of the copy of its code that a running agent keeps on its node."""
    return f"{folder}/a/{run_id}.{node}/agent.pyz"


ARCHIVE = "agent-python.tar.gz"
LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
)
"""Parts of a standard library that the archive leaves out."""
_CHECK_S = 10.0


def fits(python: str, oldest: tuple[int, int]) -> bool:
    """Whether this interpreter can run the agent."""
    if not os.access(python, os.X_OK):
        return False
    try:
        words = (python, "-I", "-S", "-c", f"import sys; sys.exit(sys.version_info < {oldest})")
        return run_command(words, timeout_s=_CHECK_S, check=False).code == 0
    except CommandError:
        return False


def pack_interpreter(target: Path) -> Path:
    """Pack the current interpreter and its standard library, without installed packages."""
    binary = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    with replacing(target) as file, tarfile.open(None, "w:gz", file, compresslevel=1) as archive:
        archive.add(binary, "bin/python3")
        archive.add(library, f"lib/{library.name}", filter=_wanted)
        for shared in _shared_libraries(binary):
            archive.add(shared.resolve(), f"lib/{shared.name}")
    return target


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    if name in LEFT_OUT or name.startswith("config-") or name.endswith(".a"):
        return None
    return None if entry.issym() and entry.linkname.startswith("/") else entry


def _shared_libraries(binary: Path) -> list[Path]:
    """Return the interpreter's own shared library, if it is built with one."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    if ".so" not in name:
        return []
    folders = (binary.parent.parent / "lib", Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent"))
    return [folder / name for folder in folders if (folder / name).exists()][:1]
