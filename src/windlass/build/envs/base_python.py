"""The interpreter that a venv stands on, to go into an archive with it: the venv becomes a Python of its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from windlass.node.sys.reading import read_bytes
from windlass.agents.interpreter import LEFT_OUT
from windlass.build.envs.archive import ArchiveMember, refuse_unreadable
from windlass.build.envs.inspect import EnvFacts
from windlass.errors import UsageError
from windlass.node.libs.closure import GLIBC
from windlass.node.libs.elf import Elf, ElfError, is_elf, parse_elf, read_elf

_BESIDE = b"$ORIGIN/../lib"


class BasePython:
    """A program and its standard library, as members of the archive."""

    def __init__(self, program: Path, library: Path, shared: Path | None = None, patched: bytes | None = None) -> None:
        self.program, self.library, self.shared, self.patched = program, library, shared, patched
        self._replaced = {"bin/python", "bin/python3", f"bin/{library.name}", "pyvenv.cfg"}

    def has(self, inside: str) -> bool:
        """Whether a member of the venv gives way."""
        return inside in self._replaced

    def entries(self) -> Iterator[ArchiveMember]:
        status = self.program.stat()
        name = f"bin/{self.library.name}"
        mtime = int(status.st_mtime)
        yield ArchiveMember(name=name, path=str(self.program), data=self.patched, mode=0o755, mtime=mtime, size=status.st_size)
        if self.shared is not None:
            size = self.shared.stat().st_size
            yield ArchiveMember(name=f"lib/{self.shared.name}", path=str(self.shared), mode=0o755, mtime=mtime, size=size)
        for link in ("bin/python", "bin/python3"):
            yield ArchiveMember(name=link, link=self.library.name, mode=0o777, mtime=mtime)
        # Debian's Python looks for packages under this name outside of a venv.
        yield ArchiveMember(name=f"lib/{self.library.name}/dist-packages", link="site-packages", mode=0o777, mtime=mtime)
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
        """Libraries of the system that the program and its standard library are linked with."""
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
    """The interpreter of a venv. Raises `UsageError` for one that works only where it is."""
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
    """A program whose loader looks for libraries beside it, in the place of the folder that it was built for. The new
    name must fit into the old one's room; None where it does not, or where anything else would change."""
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
