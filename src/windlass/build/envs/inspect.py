"""Inspect a Python environment: read its files and run nothing of it.

Everything in it may be damaged, incomplete or from another machine. Data that cannot be read is left out or named, and
never raises an error.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from windlass.build.envs.archive import interpreter_of, own_files, read_text_file, site_packages
from windlass.build.envs.create import RECORD
from windlass.build.envs.installed import (
    HiddenModule,
    Installed,
    SearchPath,
    hidden_modules,
    installed_in,
    lost_files,
    unfit_wheels,
)
from windlass.build.envs.libraries import EnvLibraries, LibraryCopies, MpiModule, OldLibrary
from windlass.build.envs.requirements import normal_name, unmet
from windlass.errors import UsageError
from windlass.node.sys.reading import read_object

_TORCH_LINE = re.compile(r"^(__version__|cuda|hip|xpu)\b[^=]*=\s*'([^']*)'", re.MULTILINE)
_ACTIVE = re.compile(r"""^\s*(?:export )?VIRTUAL_ENV=['"]?(/[^'"$\n]*?)['"]?\s*$""", re.MULTILINE)
_MAPPING = re.compile(r"'([^']+)'\s*:\s*'(/[^']*)'")


class OutsidePath(msgspec.Struct, frozen=True, kw_only=True):
    """A path outside of the environment that Python would search, because of a `.pth` file or an editable install."""

    by: str
    path: str
    found: bool
    editable: bool


class EnvFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an environment on disk."""

    path: str
    kind: str
    python: str
    base: str
    """The base interpreter of a venv. Empty for conda, which has its own interpreter."""
    base_found: bool
    beneath: bool
    machine: str = ""
    foreign: tuple[str, ...] = ()
    """Libraries for another machine."""
    damaged: tuple[str, ...] = ()
    """Libraries that are not valid ELF files."""
    lost: tuple[str, ...] = ()
    """Files that a package installed and that are missing or empty: `numpy: numpy/core.py`."""
    unfit: tuple[str, ...] = ()
    """Packages and extensions for another Python, another machine or another C library."""
    copies: tuple[LibraryCopies, ...] = ()
    old: tuple[OldLibrary, ...] = ()
    unresolved: tuple[tuple[str, str], ...] = ()
    """Extension modules, and a library of each that the loader does not find."""
    hidden: tuple[HiddenModule, ...] = ()
    glibc: str = ""
    glibc_by: str = ""
    packages: dict[str, str] = {}
    beneath_packages: dict[str, str] = {}
    twice: tuple[str, ...] = ()
    unmet: tuple[tuple[str, str, str], ...] = ()
    torch: dict[str, str] = {}
    """Those of `__version__`, `cuda`, `hip` and `xpu` that are set."""
    plugins: tuple[str, ...] = ()
    mpi: tuple[MpiModule, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    """Scripts whose Python is in another place, and that place."""
    outside: tuple[OutsidePath, ...] = ()
    incomplete: bool = False
    fixed: tuple[str, ...] = ()
    """Files into which conda wrote the environment's path."""
    made_for: str = ""
    """The site that windlass created it for. Empty if windlass did not create it."""


_NO_SEARCH = SearchPath()


def inspect_env(path: str, search: SearchPath = _NO_SEARCH) -> EnvFacts:
    """Inspect an environment. Raises `UsageError` if the path is not an environment.

    `search` is what the shell adds to the search paths.
    """
    root = Path(path).expanduser().absolute()
    kind = _kind(root)
    config = _config(root)
    minor = _minor(root, config)
    base = _base(root, config) if kind == "venv" else ""
    python = _python(root, config, minor)
    folders = tuple(folder for folder in site_packages(root) if folder.parent.name in (f"python{minor}", "python3"))
    others = [folder for folder in site_packages(root) if folder not in folders]
    found = {folder: installed_in(folder) for folder in folders}
    packages = [package for each in found.values() for package in each]
    beneath = config.get("include-system-site-packages", "").lower() == "true"
    below = _beneath_packages(base, minor) if beneath else {}
    versions = {normal_name(package.name): package.version for package in packages}
    libraries = EnvLibraries(root, minor, search.libraries)
    names = [normal_name(package.name) for package in packages]
    unfit = [*unfit_wheels(packages, minor, libraries.machine, libraries.musl), *libraries.unfit]
    unfit += [str(folder.relative_to(root)) for folder in others if installed_in(folder) and not packages]
    return EnvFacts(
        path=str(root),
        kind=kind,
        python=python,
        base=base,
        base_found=not base or Path(base).exists(),
        beneath=beneath,
        machine=libraries.machine,
        foreign=tuple(libraries.foreign),
        damaged=tuple(libraries.damaged),
        lost=tuple(lost for folder, each in found.items() for lost in lost_files(folder, each)),
        unfit=tuple(unfit),
        copies=libraries.copies(),
        old=libraries.old(),
        unresolved=() if beneath else libraries.unresolved(),
        hidden=tuple(hidden_modules(folders, minor, search, user=kind != "venv")),
        glibc=libraries.glibc,
        glibc_by=libraries.glibc_by,
        packages=dict(sorted(versions.items())),
        beneath_packages=below,
        twice=tuple(sorted({name for name in names if names.count(name) > 1})),
        unmet=_unmet(packages, {**below, **versions}, python, libraries.machine),
        torch=_torch(root),
        plugins=tuple(libraries.plugins),
        mpi=tuple(libraries.mpi),
        moved=tuple(_moved(root)),
        outside=tuple(_outside(root)),
        incomplete=not (root / "bin" / "python").exists() and not (root / "bin" / "python").is_symlink(),
        fixed=tuple(_fixed(root)),
        made_for=_made_for(root),
    )


def _kind(root: Path) -> str:
    if (root / "pyvenv.cfg").is_file():
        return "venv"
    if (root / "conda-meta").is_dir():
        return "conda"
    if (root / "bin" / "python").exists() and site_packages(root):
        return "python"  # a complete Python: the result of `pack --with-python` for a venv
    if root.is_dir():
        what = "neither pyvenv.cfg nor conda-meta is in it"
    else:
        what = "it is a file, not a folder" if root.exists() else "there is no such folder"
    raise UsageError(f"{root} is no Python environment: {what}", hint="give the folder that contains bin/python")


def _config(root: Path) -> dict[str, str]:
    data = read_text_file(root / "pyvenv.cfg") or b""
    pairs = (line.partition("=") for line in data.decode(errors="replace").splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _minor(root: Path, config: dict[str, str]) -> str:
    """Return the version of the packages' folder: the one of pyvenv.cfg if there is such a folder."""
    names = [path.parent.name.removeprefix("python") for path in site_packages(root)]
    said = ".".join(_said(config).split(".")[:2])
    return next((name for name in names if said and name.rstrip("t") == said), names[-1] if names else "")


def _said(config: dict[str, str]) -> str:
    return config.get("version") or config.get("version_info", "")


def _python(root: Path, config: dict[str, str], minor: str) -> str:
    said = _said(config)
    if not said:
        with contextlib.suppress(OSError):
            records = sorted((root / "conda-meta").glob("python-3*.json"))
            said = records[-1].name.split("-")[1] if records else ""
    return re.sub(r"\.final.*", "", said) or minor


def _base(root: Path, config: dict[str, str]) -> str:
    """Return the target of the link bin/python, or the entry in pyvenv.cfg."""
    link = root / "bin" / "python"
    with contextlib.suppress(OSError, RuntimeError):
        if link.is_symlink():
            return os.path.realpath(link)
    return config.get("executable") or str(Path(config.get("home", "")) / "python3")


def _beneath_packages(base: str, minor: str) -> dict[str, str]:
    prefix = Path(base).parent.parent
    folders = [prefix / "lib" / f"python{minor}" / "site-packages", prefix / "lib/python3/dist-packages"]
    pairs = [entry for folder in folders if folder.is_dir() for entry in installed_in(folder)]
    return {normal_name(entry.name): entry.version for entry in pairs}


def _unmet(
    packages: list[Installed], versions: dict[str, str], python: str, machine: str
) -> tuple[tuple[str, str, str], ...]:
    marker = {
        "python_version": ".".join(python.rstrip("t").split(".")[:2]),
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine or "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "extra": "",
    }
    if python.count(".") > 1:  # otherwise unknown: only pyvenv.cfg and conda name the whole version
        marker["python_full_version"] = python
    return tuple(
        (n.package, n.needs, n.found) for n in unmet({one.name: one.needs for one in packages}, versions, marker)
    )


def _torch(root: Path) -> dict[str, str]:
    for folder in site_packages(root):
        data = read_text_file(folder / "torch" / "version.py")
        if data is not None:
            return {key: value for key, value in _TORCH_LINE.findall(data.decode(errors="replace")) if value}
    return {}


def _moved(root: Path) -> list[tuple[str, str]]:
    """Return scripts that start the Python of another place, and an activation script that activates one."""
    found = []
    for path in own_files(root):
        data = read_text_file(path) if path.parent.name == "bin" else None
        python = interpreter_of(data) if data else None
        if python and _is_elsewhere(python, root):
            found.append((path.name, python))
        active = _ACTIVE.search(data.decode(errors="replace")) if data and path.name == "activate" else None
        if active and os.path.realpath(active[1]) != os.path.realpath(root):
            found.append((path.name, f"{active[1]}/bin/python"))
    return found


def _is_elsewhere(python: str, root: Path) -> bool:
    folder, own = os.path.realpath(Path(python).parent), os.path.realpath(root / "bin")
    if folder == own:
        return False
    # The Python of the original of a copied venv is a link to the same base.
    original = Path(python).parent.parent / "pyvenv.cfg"
    return original.is_file() or os.path.realpath(python) != os.path.realpath(root / "bin/python")


def _outside(root: Path) -> list[OutsidePath]:
    found = []
    for path in own_files(root):
        data = read_text_file(path) if path.parent.name.endswith("-packages") else None
        if data is None:
            continue
        text = data.decode(errors="replace")
        editable = path.name.startswith("__editable__") or path.suffix == ".egg-link"
        targets = [target for _, target in _MAPPING.findall(text)] if path.suffix == ".py" else _pth_paths(text)
        for target in targets:
            if not (target == str(root) or target.startswith(f"{root}/")):
                there = Path(target).exists()
                found.append(OutsidePath(by=path.name, path=target, found=there, editable=editable or _source(target)))
    return list(dict.fromkeys(found))


def _pth_paths(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line.startswith("/")]


def _source(target: str) -> bool:
    """Return whether the path is a checkout that older tools installed with `pip install -e`."""
    return any((Path(target) / name).exists() for name in ("setup.py", "pyproject.toml"))


def _fixed(root: Path) -> list[str]:
    found: list[str] = []
    for record in sorted((root / "conda-meta").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
            paths = read_object(record, 1 << 28)["paths_data"]["paths"]
            found += [str(entry["_path"]) for entry in paths if entry.get("prefix_placeholder")]
    return sorted(found)


def _made_for(root: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        found = read_object(root / RECORD)
        return str(found.get("site", "")) if isinstance(found, dict) else ""
    return ""
