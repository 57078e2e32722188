"""`windlass bench` as a user types it, with two ranks on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster.command import windlass_argv, windlass_env


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, **windlass_env(folder), "OMP_NUM_THREADS": "1"}


def bench(folder: Path, *words: str, timeout_s: float = 120, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `windlass bench WORDS` to its end; runs go below `folder`."""
    return subprocess.run(
        windlass_argv("bench", *words),
        env=environment(folder),
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def ranked(folder: Path, *words: str, ranks: int = 2, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """The same with the interpreter of the tests for the ranks."""
    first, *rest = words
    return bench(folder, first, "--python", sys.executable, "-r", str(ranks), *rest, timeout_s=timeout_s)


def record_of(folder: Path) -> dict[str, Any]:
    """The one record below `folder`."""
    (path,) = (folder / "runs").glob("*/record.json")
    return dict(json.loads(path.read_text()))
