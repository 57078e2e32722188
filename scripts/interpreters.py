"""The Pythons of this machine, by version: those in PATH, and pyenv's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

LOGIN = ("3.10", "3.11", "3.12", "3.13")
NODE = ("3.9", *LOGIN)
"""What windlass supports: where it is installed, and what its parts on the nodes run with."""


def interpreters(versions: tuple[str, ...]) -> dict[str, str]:
    """Path of an interpreter of each version that is here and starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found: dict[str, str] = {}
    for version in versions:
        candidates = [*sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}"))), f"/usr/bin/python{version}"]
        candidates += [path] if (path := shutil.which(f"python{version}")) else []
        works = next((candidate for candidate in candidates if _starts(candidate, version)), None)
        if works:
            found[version] = works
    return found


def _starts(path: str, version: str) -> bool:
    argv = [path, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == version
