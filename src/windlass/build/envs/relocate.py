"""Paths inside an environment that name the environment itself: scripts, activation, `pyvenv.cfg`, `.pth` files.

Writing a new place into them makes an environment that was built under one name work under another; the forms that
work anywhere are for archives.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from windlass.node.sys.atomic import replace_file
from windlass.node.sys.reading import read_bytes

MAX_TEXT = 1 << 20
_PYTHON_LINE = re.compile(rb"#!\s*(\S*/bin/python[\d.]*)([^\n]*)\n")
_EXEC_LINE = re.compile(rb"#!/bin/sh\n'''exec' \"?(\S*/bin/python[\d.]*)\"? \"\$0\" \"\$@\"\n' '''\n")


def own_files(root: Path) -> Iterator[Path]:
    """Files that tools write the environment's own path into: of a venv all there are, of conda those of Python."""
    yield from _files(root / "bin")
    if (root / "pyvenv.cfg").is_file():
        yield root / "pyvenv.cfg"
    for packages in site_packages(root):
        for path in _files(packages):
            if path.suffix in (".pth", ".egg-link") or path.name.startswith("__editable__"):
                yield path


def site_packages(root: Path) -> tuple[Path, ...]:
    """The folders of packages in a prefix."""
    found = sorted(root.glob("lib/python3*/site-packages")) + sorted(root.glob("lib/python3*/dist-packages"))
    return tuple(path for path in found if path.is_dir() and not path.is_symlink())


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return []


def read_text_file(path: Path) -> bytes | None:
    """The bytes of a small file that holds text; None for programs, large files and what cannot be read."""
    try:
        data = read_bytes(path, MAX_TEXT)
    except OSError:
        return None
    return None if b"\0" in data else data


def move_names(root: Path, old: str, new: str) -> int:
    """Write `new` for `old` in all files that name the environment's own place; returns in how many."""
    before, after = os.fsencode(old), os.fsencode(new)
    whole = re.compile(re.escape(before) + rb"(?![\w.-])")
    count = 0
    for path in own_files(root):
        data = read_text_file(path)
        if data is None or before not in data:
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        replace_file(path, whole.sub(lambda _: after, data))
        path.chmod(mode)
        count += 1
    return count


def interpreter_of(data: bytes) -> str | None:
    """The Python that a script names in its first line, in either of pip's forms."""
    found = _PYTHON_LINE.match(data) or _EXEC_LINE.match(data)
    return os.fsdecode(found[1]) if found else None


def portable_script(data: bytes) -> bytes:
    """The script with a first line that takes the Python beside it, wherever both are. What is none stays as it is."""
    found = _PYTHON_LINE.match(data) or _EXEC_LINE.match(data)
    if found is None:
        return data
    name = found[1].rsplit(b"/", 1)[1]
    options = found[2].strip() if found.re is _PYTHON_LINE else b""
    words = b" " + options if options else b""
    # sh reads the second line as a command, Python the second and third as a string.
    head = (
        b'#!/bin/sh\n\'\'\'exec\' "$(dirname "$(readlink -f "$0")")/'
        + name
        + b'"'
        + words
        + b' "$0" "$@"\n'
        + b"' '''\n"
    )
    return head + data[found.end() :]
