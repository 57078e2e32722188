"""The start-up hook as a node has it: a folder of its own, and the environment of a rank."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from windlass.node.sampler import gloo_exit, on_request, recorder, sitecustomize
from windlass.node.sampler.recorder import parse_lines


def hooked(tmp_path: Path, *, behind: str = "", rank: int = 0) -> dict[str, str]:
    """The environment of a rank with the hook; `behind` is what PYTHONPATH was before."""
    folder, steps = tmp_path / "python", tmp_path / "steps"
    folder.mkdir(exist_ok=True)
    steps.mkdir(exist_ok=True)
    shutil.copy(sitecustomize.__file__, folder / "sitecustomize.py")
    shutil.copy(recorder.__file__, folder / "windlass_recorder.py")
    shutil.copy(gloo_exit.__file__, folder / "windlass_gloo_exit.py")
    shutil.copy(on_request.__file__, folder / "windlass_on_request.py")
    path = f"{folder}:{behind}" if behind else str(folder)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**environ, "PYTHONPATH": path, "WINDLASS_STEPS": str(steps), "RANK": str(rank)}


def lines_of(tmp_path: Path, rank: int = 0) -> list[dict[str, dict[str, object]]]:
    return parse_lines((tmp_path / "steps" / str(rank)).read_bytes().splitlines())[0]
