"""The libraries of an environment: their machine, the C library they need, copies, and what the loader finds for them.

The module reads ELF files and loads none of them. It covers plugins of NCCL and the MPI of mpi4py too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

import msgspec

from windlass.build.envs.archive import read_text_file
from windlass.node.libs.closure import GLIBC, SystemRoot, newest, version_key
from windlass.node.libs.elf import Elf, ElfError, is_elf, read_elf
from windlass.node.sys.reading import open_plain

MAX_LIBRARIES = 20_000
_HEAD_BYTES = 1 << 16
_MPI = re.compile(r"libmpi\w*\.so(\.\d+)*\Z")
_PLUGIN = re.compile(r"lib(nccl|rccl)-net[\w-]*\.so(\.\d+)*\Z")
_ONCE = re.compile(r"(lib(?:gomp|omp|iomp5|nccl|rccl))(?:-[0-9a-f]{6,})?\.so")
"""Libraries with state for the whole process, of which a second copy does harm."""
_EXTENSION = re.compile(r"(\w+)\.(?:(cpython)-(\d+t?)-([\w-]+)|abi3)\.so\Z")
_NOT_IN_WHEELS = re.compile(
    r"lib(c\.musl|cuda|nvidia-|nvcuvid|amdhip|hsa-|rocm|ze_|mpi|fabric|ibverbs|rdmacm|tbb|av|sw|python)"
)
"""Libraries of a driver or of a site, and optional ones (video, TBB). A login node may lack them."""


class MpiModule(msgspec.Struct, frozen=True, kw_only=True):
    """An extension of mpi4py, the MPI that it is linked with, and the path of that MPI on this machine."""

    file: str
    library: str
    place: str


class LibraryCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Different files of one library that must be in a process only once."""

    library: str
    files: tuple[str, ...]


class OldLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library that the loader finds on this machine and that lacks a version which a file needs of it."""

    by: str
    library: str
    place: str
    version: str


class EnvLibraries:
    """All libraries of an environment. `folders` are those in LD_LIBRARY_PATH."""

    def __init__(self, root: Path, minor: str, folders: tuple[str, ...] = ()) -> None:
        self.machine = self.glibc = self.glibc_by = ""
        self.musl = False
        self.foreign: list[str] = []
        self.damaged: list[str] = []
        self.unfit: list[str] = []
        self.plugins: list[str] = []
        self.mpi: list[MpiModule] = []
        self._root, self._minor, self._folders = root, minor, folders
        self._program: tuple[str, ...] = ()
        self._host = SystemRoot("/")
        self._all: dict[Path, Elf] = {}
        self._names: set[str] = set()
        python = os.path.realpath(root / "bin" / "python")
        with contextlib.suppress(ElfError, OSError):
            elf = read_elf(python)
            self.machine, self.musl = elf.machine, any(name.startswith("libc.musl") for name in elf.needed)
            self._program = () if elf.runpath else _expanded(Path(python), elf.rpath)
        count = 0
        for folder, inner, names in os.walk(root / "lib"):
            inner.sort()
            for name in sorted(names):
                if ".so" in name and count < MAX_LIBRARIES:
                    count += 1
                    self._names.add(name)
                    self._look(Path(folder) / name)
        self._drop_spares()

    def _look(self, path: Path) -> None:
        if path.is_symlink() or not is_elf(str(path)):
            if not path.is_symlink() and re.search(r"\.so(\.\d+)*\Z", path.name):
                self._text_or_damage(path)
            return
        inside = str(path.relative_to(self._root))
        try:
            elf = read_elf(str(path))
        except (ElfError, OSError):
            self.damaged.append(inside)
            return
        if self.machine and elf.machine != self.machine:
            self.foreign.append(inside)
            return
        if not self.musl and any(name.startswith("libc.musl") for name in elf.needed):
            self.unfit.append(f"{inside} (musl)")
            return
        self._all[path] = elf
        need = newest(version for versions in elf.version_needs.values() for version in versions)
        if version_key(need) > version_key(self.glibc):
            self.glibc, self.glibc_by = need, inside
        if _PLUGIN.match(path.name):
            self.plugins.append(inside)
        if path.parent.name == "mpi4py" and path.name.startswith("MPI"):
            library = next((name for name in elf.needed if _MPI.match(name)), "")
            found = self._host.find(library, self._search(path, elf)) if library else None
            self.mpi.append(MpiModule(file=path.name, library=library, place=found[0] if found else ""))

    def _text_or_damage(self, path: Path) -> None:
        """Some libraries are linker scripts. An empty or truncated file is damaged."""
        data = read_text_file(path)
        if data is None or not re.search(rb"INPUT|GROUP|GNU ld", data):
            self.damaged.append(str(path.relative_to(self._root)))

    def _drop_spares(self) -> None:
        """Keep only what the environment cannot do without.

        Debuggers have libraries for several machines, and some packages have extensions for several Pythons. Python
        takes the fitting one.
        """
        native = {_package(path.relative_to(self._root)) for path in self._all}
        self.foreign = [inside for inside in self.foreign if _package(Path(inside)) not in native]
        good, bad = set(), {}
        for path in self._all:
            found = _EXTENSION.fullmatch(path.name)
            if found and found[2] and found[3] != self._minor.replace(".", "") and self._minor:
                bad[path] = path.parent / found[1]
            elif found:
                good.add(path.parent / found[1])
        self.unfit += [str(path.relative_to(self._root)) for path, stem in bad.items() if stem not in good]

    def _search(self, path: Path, elf: Elf) -> tuple[str, ...]:
        """Return the folders that the loader searches for the needs of this file, before its defaults."""
        own = _expanded(path, elf.runpath or elf.rpath)
        return (*self._folders, *own) if elf.runpath else (*own, *self._program, *self._folders)

    def copies(self) -> tuple[LibraryCopies, ...]:
        """Return libraries with more than one content."""
        found: dict[str, dict[str, str]] = {}
        for path in self._all:
            family = _ONCE.match(path.name)
            if family:
                found.setdefault(family[1], {}).setdefault(_content_key(path), str(path.relative_to(self._root)))
        return tuple(LibraryCopies(library=n, files=tuple(f.values())) for n, f in found.items() if len(f) > 1)

    def old(self) -> tuple[OldLibrary, ...]:
        """Return, once for each library found, the newest version that it lacks."""
        found: dict[str, OldLibrary] = {}
        for path, elf in self._all.items():
            for name, versions in elf.version_needs.items():
                seen = None if name in GLIBC else self._host.find(name, self._search(path, elf))
                lacks = [version for version in versions if seen and version not in seen[1].version_defs]
                if seen is None or not lacks or not seen[1].version_defs or seen[0].startswith(f"{self._root}/"):
                    continue
                worst = max(lacks, key=_version)
                if seen[0] not in found or _version(worst) > _version(found[seen[0]].version):
                    by = str(path.relative_to(self._root))
                    found[seen[0]] = OldLibrary(by=by, library=name, place=seen[0], version=worst)
        return tuple(found.values())

    def unresolved(self) -> tuple[tuple[str, str], ...]:
        """Return extension modules with a library that is neither in the environment nor found by the loader."""
        found = []
        for path, elf in self._all.items():
            if _EXTENSION.fullmatch(path.name) and path.parent.name != "mpi4py":
                for name in elf.needed:
                    known = name in self._names or name in GLIBC or _NOT_IN_WHEELS.match(name)
                    if not known and self._host.find(name, self._search(path, elf)) is None:
                        found.append((str(path.relative_to(self._root)), name))
        return tuple(found)


def _version(symbol: str) -> tuple[int, ...]:
    return version_key(symbol.rpartition("_")[2])


def _expanded(path: Path, folders: tuple[str, ...]) -> tuple[str, ...]:
    origin = str(path.parent)
    return tuple(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders)


def _package(inside: Path) -> str:
    """Return the folder or file below `site-packages` that this file belongs to."""
    parts = inside.parts
    index = next((number for number, part in enumerate(parts) if part.endswith("-packages")), 0)
    return "/".join(parts[: index + 2])


def _content_key(path: Path) -> str:
    with open_plain(path) as stream:
        head = hashlib.sha256(stream.read(_HEAD_BYTES)).hexdigest()
    return f"{path.stat().st_size} {head}"
