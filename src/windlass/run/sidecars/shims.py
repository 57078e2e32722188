"""Looking at environments below the cache's roots, once, before the agents start: their scripts, and their base.

What is found here travels with the agents, so that not every node reads the first line of every script of `bin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from windlass.model.plan import CachePlan
from windlass.node.sys.reading import open_plain, read_text
from windlass.plan.cache import is_below

_MAX_SCRIPTS = 4000
_MAX_BYTES = 4 << 20
_HEAD_BYTES = 4096
_FIRST = re.compile(rb"\A#![ \t]*(/[^\s]+)[ \t]*([^\n]*)\n")
_LONG = re.compile(rb"\A#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"?()( \"\$0\" \"\$@\")\n' '''\n")
"""How installers write a first line that is too long or has spaces."""


def environment_front(prefix: str, cache: CachePlan) -> dict[str, object]:
    """What `services.node.cache.write_front` needs to know of one environment."""
    folder = Path(prefix)
    front: dict[str, object] = {"prefix": _as_declared(prefix, cache), "scripts": dict(_scripts(folder, cache))}
    config = _nested_config(folder, cache)
    if config is not None:
        front |= config
    return front


def _scripts(folder: Path, cache: CachePlan) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    try:
        entries = sorted((folder / "bin").iterdir())[:_MAX_SCRIPTS]
    except OSError:
        return
    for entry in entries:
        found = _script(entry, cache)
        if found is not None:
            yield entry.name, found


def _script(path: Path, cache: CachePlan) -> tuple[str, list[str]] | None:
    """Interpreter and its options of a script whose interpreter lies below a root."""
    try:
        status = path.stat()
        if not path.is_file() or status.st_size > _MAX_BYTES or not status.st_mode & 0o111:
            return None
        with open_plain(path, follow=True) as stream:
            data = stream.read(_HEAD_BYTES)
    except OSError:
        return None
    match = _LONG.match(data) or _FIRST.match(data)
    if match is None:
        return None
    interpreter = match.group(1).decode("utf-8", "surrogateescape")
    declared = _as_declared(interpreter, cache)
    if not any(is_below(declared, root.path) for root in cache.roots):
        return None
    options = match.group(2).decode("utf-8", "surrogateescape").strip()
    return declared, [options] if options else []  # the kernel hands all of them over as one word, too


def _nested_config(folder: Path, cache: CachePlan) -> dict[str, object] | None:
    """A virtual environment whose base interpreter lies below a root as well. Its `pyvenv.cfg` names the base by its
    own path, which would lead around the view, so the front gets one that names it in the view."""
    try:
        text = read_text(folder / "pyvenv.cfg", follow=True)
    except (OSError, UnicodeDecodeError):
        return None
    home = re.search(r"(?m)^home\s*=\s*(.+?)\s*$", text)
    if home is None:
        return None
    base = _as_declared(home.group(1), cache)
    if not any(is_below(base, root.path) for root in cache.roots):
        return None
    pythons = sorted(entry.name for entry in (folder / "bin").glob("python*") if _is_python(entry))
    interpreter = next((name for name in pythons if (Path(base) / name).exists()), "python3")
    return {
        "config": text[: home.start(1)] + "{view}" + base + text[home.end(1) :],
        "base_python": f"{base}/{interpreter}",
        "pythons": pythons,
        "parts": sorted(entry.name for entry in folder.iterdir() if entry.name not in {"bin", "pyvenv.cfg"}),
    }


def _is_python(path: Path) -> bool:
    return re.fullmatch(r"python[\d.]*", path.name) is not None


def _as_declared(path: str, cache: CachePlan) -> str:
    """A path below what a root really is, as it is below the root that was declared."""
    for root in cache.roots:
        if is_below(path, root.path):
            return path
        if is_below(path, root.real):
            return root.path + path[len(root.real) :]
    return path
