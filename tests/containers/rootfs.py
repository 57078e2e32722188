"""A small image made of the host's own programs: a shell, `env`, Python, and the libraries they need. No network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("sh", "bash", "env", "cat", "ls")
_FOLDERS = ("dev", "proc", "sys", "tmp", "etc", "run", "var/tmp", "mnt/0", "mnt/1", "usr/bin", "host/lib", "root")
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def make_rootfs(root: Path) -> Path:
    """Fill `root` with an image in a second or two."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "bin").symlink_to("usr/bin")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found, f"no {name} on this machine"
        copy_program(Path(found), root / "usr/bin" / name, root)
    _copy_python(root)
    return root


def python_inside() -> str:
    """Where the image has the interpreter that runs the tests."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")


def copy_program(source: Path, target: Path, root: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), target)
    listing = subprocess.run(["ldd", str(source)], capture_output=True, text=True, timeout=30).stdout
    for library in _LIBRARY.findall(listing):
        place = root / library.lstrip("/")
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(library).resolve(), place)


def _copy_python(root: Path) -> None:
    """The interpreter and its standard library, without what is never imported here."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    copy_program(base / "bin" / version, root / python_inside().lstrip("/"), root)
    unwanted = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "idlelib", "ensurepip", "__pycache__", "*.a"
    )
    library = base / "lib" / version
    shutil.copytree(library, root / str(library).lstrip("/"), ignore=unwanted, dirs_exist_ok=True)
    for extension in (library / "lib-dynload").glob("*.so"):
        if extension.name.startswith(("math", "_struct", "_posixsubprocess", "select", "_socket", "_json", "fcntl")):
            copy_program(extension, root / str(extension).lstrip("/"), root)
