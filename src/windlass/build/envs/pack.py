"""Pack an environment into one archive that works wherever it is unpacked.

Scripts find the Python next to them, activation finds its own folder, and links inside become relative. The files keep
their times, because compiled modules are valid only for sources of the same time. All other attributes are fixed, so
the same environment gives the same bytes. The archive is complete or does not exist.

With `--with-python`, the archive also contains the base interpreter of a venv. The venv then becomes a complete Python.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from windlass.agents.ship import LEFT_OUT
from windlass.base.tables import packaged_text
from windlass.build.envs.archive import (
    SUFFIXES,
    ArchiveMember,
    portable_script,
    read_text_file,
    refuse_unreadable,
    write_archive,
)
from windlass.build.envs.inspect import EnvFacts, inspect_env
from windlass.errors import UsageError
from windlass.node.libs.closure import GLIBC
from windlass.node.libs.elf import Elf, ElfError, is_elf, parse_elf, read_elf
from windlass.node.sys.reading import read_bytes

_BESIDE = b"$ORIGIN/../lib"


class BasePython:
    """A program and its standard library, as members of the archive."""

    def __init__(self, program: Path, library: Path, shared: Path | None = None, patched: bytes | None = None) -> None:
        self.program, self.library, self.shared, self.patched = program, library, shared, patched
        self._replaced = {"bin/python", "bin/python3", f"bin/{library.name}", "pyvenv.cfg"}

    def has(self, inside: str) -> bool:
        """Return whether this member of the venv is replaced."""
        return inside in self._replaced

    def entries(self) -> Iterator[ArchiveMember]:
        status = self.program.stat()
        name = f"bin/{self.library.name}"
        mtime = int(status.st_mtime)
        yield ArchiveMember(
            name=name, path=str(self.program), data=self.patched, mode=0o755, mtime=mtime, size=status.st_size
        )
        if self.shared is not None:
            size = self.shared.stat().st_size
            yield ArchiveMember(
                name=f"lib/{self.shared.name}", path=str(self.shared), mode=0o755, mtime=mtime, size=size
            )
        for link in ("bin/python", "bin/python3"):
            yield ArchiveMember(name=link, link=self.library.name, mode=0o777, mtime=mtime)
        # Outside of a venv, Debian's Python searches for packages under this name.
        yield ArchiveMember(
            name=f"lib/{self.library.name}/dist-packages", link="site-packages", mode=0o777, mtime=mtime
        )
        for folder, folders, names in os.walk(self.library, onerror=refuse_unreadable):
            folders[:] = sorted(name for name in folders if _wanted(name) and not (Path(folder) / name).is_symlink())
            for file in sorted(names):
                path = Path(folder) / file
                found = path.stat() if path.exists() else None
                if found is None or not stat.S_ISREG(found.st_mode) or not _wanted(file):
                    continue
                inside = f"lib/{self.library.name}/{path.relative_to(self.library)}"
                mode, mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
                yield ArchiveMember(name=inside, path=str(path), mode=mode, mtime=mtime, size=found.st_size)

    def needs(self) -> Iterator[str]:
        """Return the system libraries that the program and its standard library are linked with."""
        names: set[str] = set()
        for path in (self.program, *sorted((self.library / "lib-dynload").glob("*.so"))):
            names.update(_elf(path).needed if is_elf(str(path)) else ())
        own = sorted(name for name in names if name not in GLIBC and not name.startswith("libpython"))
        if own:
            yield f"libraries of the system for Python's own modules: {', '.join(own)}"


def _elf(path: Path) -> Elf:
    try:
        return read_elf(str(path))
    except (ElfError, OSError) as error:
        raise UsageError(f"--with-python: {path} cannot be read: {error}", hint="leave --with-python out") from error


def _wanted(name: str) -> bool:
    return name not in LEFT_OUT and not name.startswith("config-") and not name.endswith(".a")


def base_python(facts: EnvFacts) -> BasePython:
    """Return the interpreter of a venv. Raises `UsageError` for one that cannot be moved."""
    program = Path(facts.base)
    minor = ".".join(facts.python.split(".")[:2])
    library = program.parent.parent / "lib" / f"python{minor}"
    hint = "leave --with-python out, and let every node have this Python in the same place"
    if not (library / "os.py").is_file():
        raise UsageError(f"--with-python: no standard library for {program} in {library}", hint=hint)
    elf = _elf(program)
    name = next((name for name in elf.needed if name.startswith("libpython")), "")
    if not name:
        return BasePython(program, library)
    shared = library.parent / name
    patched = beside_itself(read_bytes(program, 1 << 30, follow=True), elf)
    if not shared.is_file() or patched is None:
        raise UsageError(f"--with-python: {program} needs {name} from the place that it was built for", hint=hint)
    return BasePython(program, library, shared, patched)


def beside_itself(data: bytes, elf: Elf) -> bytes | None:
    """Patch a program so that its loader searches for libraries next to it, not in the folder that it was built for.

    The new path must fit into the space of the old one. Returns None if it does not fit, or if the patch would change
    other data.
    """
    for old in (*elf.rpath, *elf.runpath):
        room = os.fsencode(old)
        if len(room) < len(_BESIDE) or data.count(b"\0" + room + b"\0") != 1:
            continue
        changed = data.replace(b"\0" + room + b"\0", b"\0" + _BESIDE.ljust(len(room), b"\0") + b"\0")
        try:
            found = parse_elf(changed)
        except ElfError:
            continue
        if found.needed == elf.needed and _BESIDE.decode() in (*found.rpath, *found.runpath):
            return changed
    return None


_DROPPED = ("windlass-env.log", "bin/activate.csh", "bin/activate.fish", "bin/activate.nu", "bin/Activate.ps1")
"""The log, and activation scripts of shells in which a script cannot detect its own path."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """The written archive, and what it needs where it is unpacked."""

    file: str
    size_bytes: int
    entries: int
    source_bytes: int
    seconds: float
    needs: tuple[str, ...]
    left: tuple[str, ...]
    """Files that contain the old path and could not be made portable."""


def pack_env(path: str, output: str, *, with_python: bool, environ: Mapping[str, str], force: bool = False) -> Packed:
    """Write the archive.

    Raises `UsageError` if it cannot be packed. Raises `MachineError` if a program or disk space is missing.
    """
    began = time.monotonic()
    facts = inspect_env(path)
    root = Path(facts.path)
    final = Path(output).expanduser().absolute()
    _refuse(facts, root, final, with_python)
    if not force and (final.exists() or final.is_symlink()):
        hint = "replace it with --force, or choose another name"
        raise UsageError(f"{final} already exists: nothing was changed", hint=hint)
    base = base_python(facts) if with_python and facts.kind == "venv" else None
    entries = [*_entries(root, base), *(base.entries() if base else ())]
    write_archive(entries, final, environ)
    return Packed(
        file=str(final),
        size_bytes=final.stat().st_size,
        entries=len(entries),
        source_bytes=sum(entry.size for entry in entries),
        seconds=round(time.monotonic() - began, 1),
        needs=tuple(_needs(facts, base)),
        left=tuple(_left(root, entries, facts.fixed)),
    )


def _refuse(facts: EnvFacts, root: Path, final: Path, with_python: bool) -> None:
    if facts.incomplete:
        raise UsageError(f"{root} has no bin/python", hint="`windlass env check` shows the problems")
    if not final.name.endswith(SUFFIXES):
        hint = ".tar.gz, .tar.zst, .tar, .sqsh or .squashfs"
        raise UsageError(f"{final.name}: the name has no known suffix", hint=hint)
    if not final.parent.is_dir():
        raise UsageError(f"{final.parent}: there is no such folder", hint="create it first")
    if final.is_relative_to(root):
        hint = "choose a path outside the environment"
        raise UsageError("the archive would be inside the environment that it packs", hint=hint)
    if final.is_dir():
        raise UsageError(f"{final} is a folder", hint="give the name of a file")
    outside = [path for path in facts.outside if path.editable]
    if outside:
        hint = "install it without -e (pip install --no-deps --force-reinstall PATH), then pack"
        raise UsageError(f"{outside[0].path} is installed with pip install -e: its code is not in {root}", hint=hint)
    if facts.moved:
        text = f"{facts.moved[0][0]} starts {facts.moved[0][1]}: the environment was moved or copied"
        hint = "create it again; `windlass env check` shows details"
        raise UsageError(text, hint=hint)
    if with_python and facts.beneath:
        text = "--with-python: the packages beneath it belong to its Python and would be left behind"
        hint = "leave --with-python out; the nodes need the same module or image"
        raise UsageError(text, hint=hint)


def _entries(root: Path, base: BasePython | None) -> Iterator[ArchiveMember]:
    for folder, folders, names in os.walk(root, onerror=refuse_unreadable):
        folders.sort()
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in sorted([*names, *links]):
            inside = str((here / name).relative_to(root))
            if inside in _DROPPED or (base and base.has(inside)):
                continue
            yield from _entry(root, here / name, inside)
        for name in folders:
            if name not in links:
                status = (here / name).stat()
                inside = str((here / name).relative_to(root))
                yield ArchiveMember(
                    name=inside, folder=True, mode=stat.S_IMODE(status.st_mode), mtime=int(status.st_mtime)
                )


def _entry(root: Path, path: Path, inside: str) -> Iterator[ArchiveMember]:
    status = path.lstat()
    mode, mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        yield ArchiveMember(name=inside, link=_link(root, path), mode=0o777, mtime=mtime)
    elif stat.S_ISREG(status.st_mode):
        data = _portable(root, path, inside)
        size = status.st_size if data is None else len(data)
        inode = (status.st_dev, status.st_ino) if status.st_nlink > 1 and data is None else None
        yield ArchiveMember(name=inside, path=str(path), data=data, inode=inode, mode=mode, mtime=mtime, size=size)


def _link(root: Path, path: Path) -> str:
    """Return the target of a link: relative if it is in the environment, otherwise unchanged."""
    target = path.readlink()
    if target.is_absolute() and target.is_relative_to(root):
        return os.path.relpath(target, path.parent)
    return str(target)


def _portable(root: Path, path: Path, inside: str) -> bytes | None:
    """Return new content for a file that contains the environment's path. None: the content on disk is used."""
    if not inside.startswith("bin/") and inside != "pyvenv.cfg":
        return None
    data = read_text_file(path)
    if data is None:
        return None
    if inside == "bin/activate":
        return packaged_text(__file__, "activate.sh").encode()
    if inside == "pyvenv.cfg":
        # Python reads only `home`. The command that created the venv contains the old path.
        kept = [line for line in data.splitlines() if not line.startswith(b"command")]
        return b"\n".join(kept) + b"\n"
    changed = portable_script(data)
    return None if changed == data else changed


def _left(root: Path, entries: list[ArchiveMember], fixed: tuple[str, ...]) -> list[str]:
    """Return files that still contain the old path: scripts of an unknown form, and files that conda wrote it into."""
    changed = {entry.name for entry in entries if entry.data is not None}
    found = [name for name in fixed if name not in changed]
    for entry in entries:
        if entry.name.startswith("bin/") and entry.path and entry.name not in found:
            data = entry.data if entry.data is not None else read_text_file(Path(entry.path))
            if data is not None and os.fsencode(root) in data:
                found.append(entry.name)
    return found


def _needs(facts: EnvFacts, base: BasePython | None) -> Iterator[str]:
    if base is not None:
        yield from base.needs()
    elif facts.kind == "venv":
        yield f"{facts.base} (Python {facts.python}) in the same place, or pack it too: --with-python"
    if facts.beneath:
        yield "the module or image whose packages lie beneath it"
    for path in facts.outside:
        yield f"{path.path}, which {path.by} adds"
    if facts.glibc:
        yield f"{facts.machine}, glibc {facts.glibc} or newer"
