"""An interpreter that travels: for nodes whose own Python is too old for the agent (SLES 15 has 3.6).

One archive in the run folder, read once by each node, instead of an interpreter on the shared file system that every
agent starts from: that would be some 600 calls of it a node.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tarfile
from pathlib import Path

from windlass.base.procs.command import run_command
from windlass.errors import CommandError
from windlass.node.sys.atomic import replacing

ARCHIVE = "agent-python.tar.gz"
LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
)
"""What of a standard library need not travel."""
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
    """The interpreter that runs this, with its standard library and without anything that was installed into it."""
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
    """The interpreter's own shared library, where it is built with one."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    if ".so" not in name:
        return []
    folders = (binary.parent.parent / "lib", Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent"))
    return [folder / name for folder in folders if (folder / name).exists()][:1]
