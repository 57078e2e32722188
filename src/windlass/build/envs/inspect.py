"""Inspect a Python environment: read its files and run nothing of it.

Everything in it may be damaged, incomplete or from another machine. Data that cannot be read is left out or named, and
never raises an error.
"""

from __future__ import annotations

import contextlib
import os
import re
from importlib.metadata import Distribution, distributions
from pathlib import Path

import msgspec

from windlass.build.envs.archive import interpreter_of, own_files, read_text_file, site_packages
from windlass.build.envs.create import RECORD
from windlass.build.envs.requirements import Unmet, normal_name, unmet
from windlass.errors import UsageError
from windlass.node.libs.closure import SystemRoot, newest, version_key
from windlass.node.libs.elf import Elf, ElfError, is_elf, read_elf
from windlass.node.sys.reading import read_object

MAX_LIBRARIES = 20_000
_MPI = re.compile(r"libmpi\w*\.so(\.\d+)*\Z")
_PLUGIN = re.compile(r"lib(nccl|rccl)-net[\w-]*\.so(\.\d+)*\Z")
_TORCH_LINE = re.compile(r"^(__version__|cuda|hip|xpu)\b[^=]*=\s*'([^']*)'", re.MULTILINE)
_MAPPING = re.compile(r"'([^']+)'\s*:\s*'(/[^']*)'")


class OutsidePath(msgspec.Struct, frozen=True, kw_only=True):
    """A path outside of the environment that Python would search, because of a `.pth` file or an editable install."""

    by: str
    path: str
    found: bool
    editable: bool


class MpiModule(msgspec.Struct, frozen=True, kw_only=True):
    """An extension of mpi4py, the MPI that it is linked with, and the path of that MPI on this machine."""

    file: str
    library: str
    place: str


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


def inspect_env(path: str) -> EnvFacts:
    """Inspect an environment. Raises `UsageError` if the path is not an environment."""
    root = Path(path).expanduser().absolute()
    kind = _kind(root)
    config = _config(root)
    minor = _minor(root)
    base = _base(root, config) if kind == "venv" else ""
    found = _distributions(root)
    beneath = config.get("include-system-site-packages", "").lower() == "true"
    below = _beneath_packages(base, minor) if beneath else {}
    packages = {normal_name(name): version for name, version, _ in found}
    libraries = _Libraries(root)
    names = [normal_name(name) for name, _, _ in found]
    return EnvFacts(
        path=str(root),
        kind=kind,
        python=_python(root, config, minor),
        base=base,
        base_found=not base or Path(base).exists(),
        beneath=beneath,
        machine=libraries.machine,
        foreign=tuple(libraries.foreign),
        damaged=tuple(libraries.damaged),
        glibc=libraries.glibc,
        glibc_by=libraries.glibc_by,
        packages=dict(sorted(packages.items())),
        beneath_packages=below,
        twice=tuple(sorted({name for name in names if names.count(name) > 1})),
        unmet=tuple(
            (n.package, n.needs, n.found) for n in _unmet(found, {**below, **packages}, minor, libraries.machine)
        ),
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
    raise UsageError(f"{root} is no Python environment: {what}", hint="give the folder that has bin/python in it")


def _config(root: Path) -> dict[str, str]:
    data = read_text_file(root / "pyvenv.cfg") or b""
    pairs = (line.partition("=") for line in data.decode(errors="replace").splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _minor(root: Path) -> str:
    names = [path.parent.name for path in site_packages(root)]
    return names[-1].removeprefix("python") if names else ""


def _python(root: Path, config: dict[str, str], minor: str) -> str:
    said = config.get("version") or config.get("version_info", "")
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


def _distributions(root: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    return [entry for folder in site_packages(root) for entry in _in_folder(folder)]


def _in_folder(folder: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    found = []
    for distribution in distributions(path=[str(folder)]):
        with contextlib.suppress(Exception):  # untrusted metadata, in any state
            name, version = _named(distribution)
            found.append((name, version, tuple(distribution.requires or ())))
    return sorted(found)


def _named(distribution: Distribution) -> tuple[str, str]:
    name, version = distribution.metadata["Name"], distribution.version
    if not name or not version:
        raise ValueError("no name")
    return str(name), str(version)


def _beneath_packages(base: str, minor: str) -> dict[str, str]:
    prefix = Path(base).parent.parent
    folders = [prefix / "lib" / f"python{minor}" / "site-packages", prefix / "lib/python3/dist-packages"]
    pairs = [entry for folder in folders if folder.is_dir() for entry in _in_folder(folder)]
    return {normal_name(name): version for name, version, _ in pairs}


def _unmet(
    found: list[tuple[str, str, tuple[str, ...]]], versions: dict[str, str], minor: str, machine: str
) -> tuple[Unmet, ...]:
    marker = {
        "python_version": minor,
        "python_full_version": f"{minor}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine or "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "extra": "",
    }
    return unmet({name: lines for name, _, lines in found}, versions, marker)


def _torch(root: Path) -> dict[str, str]:
    for folder in site_packages(root):
        data = read_text_file(folder / "torch" / "version.py")
        if data is not None:
            return {key: value for key, value in _TORCH_LINE.findall(data.decode(errors="replace")) if value}
    return {}


def _moved(root: Path) -> list[tuple[str, str]]:
    found = []
    for path in own_files(root):
        data = read_text_file(path) if path.parent.name == "bin" else None
        python = interpreter_of(data) if data else None
        if (
            python
            and Path(python).parent != root / "bin"
            and os.path.realpath(python) != os.path.realpath(root / "bin/python")
        ):
            found.append((path.name, python))
    return found


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


class _Libraries:
    """Libraries of the environment: their machine, the C library they need, plugins of NCCL, MPI of mpi4py."""

    def __init__(self, root: Path) -> None:
        self.machine = self.glibc = self.glibc_by = ""
        self.foreign: list[str] = []
        self.damaged: list[str] = []
        self.plugins: list[str] = []
        self.mpi: list[MpiModule] = []
        self._host = SystemRoot("/")
        python = os.path.realpath(root / "bin" / "python")
        with contextlib.suppress(ElfError, OSError):
            self.machine = read_elf(python).machine
        count = 0
        for folder, folders, names in os.walk(root / "lib"):
            folders.sort()
            for name in sorted(names):
                if ".so" in name and count < MAX_LIBRARIES:
                    count += 1
                    self._look(root, Path(folder) / name)

    def _look(self, root: Path, path: Path) -> None:
        if path.is_symlink() or not is_elf(str(path)):
            if not path.is_symlink() and re.search(r"\.so(\.\d+)*\Z", path.name):
                self._text_or_damage(root, path)
            return
        inside = str(path.relative_to(root))
        try:
            elf = read_elf(str(path))
        except (ElfError, OSError):
            self.damaged.append(inside)
            return
        if self.machine and elf.machine != self.machine:
            self.foreign.append(inside)
            return
        need = newest(version for versions in elf.version_needs.values() for version in versions)
        if version_key(need) > version_key(self.glibc):
            self.glibc, self.glibc_by = need, inside
        if _PLUGIN.match(path.name):
            self.plugins.append(inside)
        if path.parent.name == "mpi4py" and path.name.startswith("MPI"):
            self._mpi(path, elf)

    def _text_or_damage(self, root: Path, path: Path) -> None:
        """Some libraries are linker scripts. An empty or truncated file is damaged."""
        data = read_text_file(path)
        if data is None or not re.search(rb"INPUT|GROUP|GNU ld", data):
            self.damaged.append(str(path.relative_to(root)))

    def _mpi(self, path: Path, elf: Elf) -> None:
        library = next((name for name in elf.needed if _MPI.match(name)), "")
        folders = [entry.replace("$ORIGIN", str(path.parent)) for entry in (*elf.rpath, *elf.runpath)]
        found = self._host.find(library, tuple(folders)) if library else None
        self.mpi.append(MpiModule(file=path.name, library=library, place=found[0] if found else ""))
