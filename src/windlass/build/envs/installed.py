"""Packages as they were installed: their files, the tags of their wheels, and modules that hide them.

The module only reads files. Metadata that cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

import msgspec

from windlass.node.sys.reading import read_text

MAX_FILES = 500_000
_RARE = frozenset({"tests", "test", "testing", "docs", "doc", "examples", "benchmarks", "share", "include", "man"})
_UNUSED = (".pyc", ".pyi", ".md", ".rst", ".h", ".c", ".cpp", ".pxd", ".pyx", ".html")
_NEVER_HIDDEN = frozenset({"setup", "conftest", "tests", "test", "docs", "examples", *sys.builtin_module_names})


class Installed(NamedTuple):
    """A package, and the parts of its metadata that the checks use."""

    name: str
    version: str
    needs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """Tags of its wheel: `cp311-cp311-manylinux_2_17_x86_64`. Empty if unknown, and for packages of conda."""
    files: tuple[tuple[str, int], ...] = ()
    """Path and size of each file in `RECORD`. A size of 0 also stands for an unknown one. Empty for conda's."""


class SearchPath(msgspec.Struct, frozen=True, kw_only=True):
    """What the user's shell adds to the search paths of Python and of the loader."""

    modules: tuple[str, ...] = ()
    """The folders in PYTHONPATH."""
    libraries: tuple[str, ...] = ()
    """The folders in LD_LIBRARY_PATH."""
    user: str = ""
    """The folder of `pip install --user`, without the version of Python: `~/.local/lib`. Empty if it is not used."""
    current: str = ""
    """The current folder. Python searches it first for `python -m` and for scripts in it."""


class HiddenModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the environment or of Python, and the file that Python would import instead."""

    module: str
    place: str
    by: str


def installed_in(folder: Path) -> list[Installed]:
    """Return the packages of a folder, sorted by name."""
    found = []
    for distribution in distributions(path=[str(folder)]):
        with contextlib.suppress(Exception):  # untrusted metadata, in any state
            found.append(_installed(distribution))
    return sorted(found)


def _installed(distribution: Distribution) -> Installed:
    name, version = distribution.metadata["Name"], distribution.version
    folder = Path(getattr(distribution, "_path", ""))
    if not name or not version or folder.name.startswith("~"):  # "~": the remains of an interrupted pip
        raise ValueError("no package")
    needs = tuple(distribution.requires or ())
    if _metadata(folder, "INSTALLER").strip() == "conda":
        return Installed(str(name), str(version), needs)
    tags = re.findall(r"^Tag:\s*(\S+)\s*$", _metadata(folder, "WHEEL"), re.MULTILINE)
    rows = [row for row in csv.reader(_metadata(folder, "RECORD").splitlines()) if row]
    files = tuple((row[0], int(row[2]) if len(row) > 2 and row[2].isdigit() else 0) for row in rows[:MAX_FILES])
    return Installed(str(name), str(version), needs, tuple(tags), files)


def _metadata(folder: Path, name: str) -> str:
    with contextlib.suppress(OSError):
        return read_text(folder / name, follow=True, errors="replace")  # uv may link the files of its cache
    return ""


def lost_files(folder: Path, packages: Iterable[Installed]) -> Iterator[str]:
    """Yield the files that an installed package needs and that are missing, or empty although they had content."""
    for package in packages:
        for name, size in package.files:
            if size and _matters(name):
                with contextlib.suppress(OSError, ValueError):  # unreadable, or a name that is no path
                    if not (folder / name).exists():
                        yield f"{package.name}: {name}"
                    elif (folder / name).stat().st_size == 0:
                        yield f"{package.name}: {name} (empty)"


def _matters(name: str) -> bool:
    folders = name.split("/")[:-1]
    if name.endswith(_UNUSED) or _RARE.intersection(folders) or any(part.endswith("-info") for part in folders):
        return False
    return not name.startswith("/") and (not name.startswith("..") or folders[-1:] == ["bin"])


def unfit_wheels(packages: Iterable[Installed], minor: str, machine: str, musl: bool) -> Iterator[str]:
    """Yield the packages whose wheel is for another Python, another machine or another C library."""
    for package in packages:
        if package.tags and not any(_fits(tag, minor, machine, musl) for tag in package.tags):
            yield f"{package.name} ({package.tags[0]})"


def _fits(tag: str, minor: str, machine: str, musl: bool) -> bool:
    parts = tag.split("-")
    if len(parts) != 3 or not minor:
        return True
    pythons, abis, platforms = (part.split(".") for part in parts)
    return any(_fits_python(one, abis, minor) for one in pythons) and any(
        _fits_platform(one, machine, musl) for one in platforms
    )


def _fits_python(python: str, abis: list[str], minor: str) -> bool:
    found = re.fullmatch(r"(py|cp)3(\d*)", python)
    if found is None:
        return False
    wanted, own = int(found[2] or 0), int(minor.rstrip("t").split(".")[1])
    if found[1] == "py" or "abi3" in abis:
        return wanted <= own
    return wanted == own and (not minor.endswith("t") or abis == ["none"] or any(abi.endswith("t") for abi in abis))


def _fits_platform(platform: str, machine: str, musl: bool) -> bool:
    if platform == "any":
        return True
    if not platform.startswith(("linux", "manylinux", "musllinux")) or not platform.endswith(machine):
        return False
    return platform.startswith("linux") or musl == platform.startswith("musllinux")


def hidden_modules(packages: tuple[Path, ...], minor: str, search: SearchPath, *, user: bool) -> Iterator[HiddenModule]:
    """Yield the modules of the environment and of Python that the search path hides.

    `user`: this Python searches the folder of `pip install --user` before the environment's own.
    """
    own = {name for folder in packages for name in _modules(folder)} | set(sys.stdlib_module_names)
    own -= _NEVER_HIDDEN
    places = [(folder, "PYTHONPATH") for folder in search.modules]
    if user and search.user:
        places.append((f"{search.user}/python{minor}/site-packages", "pip install --user"))
    if search.current:
        places.append((search.current, "the current folder"))
    inside = {os.path.realpath(folder) for folder in packages}
    seen: set[str] = set()
    for place, by in places:
        real = os.path.realpath(place)
        if real in inside or real in seen:
            continue
        seen.add(real)
        for name, file in sorted(_modules(Path(place)).items()):
            if name in own and not name.startswith("_"):
                yield HiddenModule(module=name, place=os.path.join(place, file), by=by)  # noqa: PTH118


def _modules(folder: Path) -> dict[str, str]:
    """Return the modules that Python finds in a folder, with the name of their file or folder.

    A folder without `__init__.py` is left out: it hides nothing.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            name, _, rest = entry.name.partition(".")
            if not name.isidentifier():
                continue
            file = rest in ("py", "so") or re.fullmatch(r"(cpython-[\w-]+|abi3)\.so", rest)
            if file or (not rest and (entry / "__init__.py").is_file()):
                found[name] = entry.name
    return found
