"""The commands of the examples' READMEs, run as they are printed, in order, in a copy of the folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import hydra_mpiexec, require_fuse, require_mpi, require_torch
from unit.cli.typed import environment

EXAMPLES = Path(__file__).parents[2] / "examples"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Those that need a cluster or an image of the reader's.
_ELSEWHERE = re.compile(r"--nodes|--mpi |\bsubmit\b|\bIMAGE\b|\bplan --site\b")
HERE = ("allreduce", "args", "aurora", "ddp", "hello", "imagenet", "multinode", "staging")

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.mpi, pytest.mark.fuse, pytest.mark.timeout(600)]


def commands(readme: Path) -> list[str]:
    lines = [line for kind, block in _BLOCK.findall(readme.read_text()) if not kind for line in block.splitlines()]
    return [line for line in lines if line.strip() and not _ELSEWHERE.search(line)]


@pytest.mark.parametrize("name", HERE)
def test_a_reader_can_type_what_the_readme_says(name: str, tmp_path: Path) -> None:
    require_torch()
    require_mpi()
    require_fuse()
    lines = commands(EXAMPLES / name / "README.md")
    assert any(line.startswith("windlass run") for line in lines), lines
    folder, node, programs = tmp_path / "example", tmp_path / "node", tmp_path / "bin"
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    node.mkdir()
    programs.mkdir()
    (programs / "windlass").write_text(f'#!/bin/sh\nexec {sys.executable} -m windlass "$@"\n')
    (programs / "windlass").chmod(0o755)
    script = "\n".join(("set -eu", *(re.sub(r"/tmp(?=[/ ]|$)", str(node), line) for line in lines)))
    path = f"{programs}:{Path(sys.executable).parent}:{hydra_mpiexec().parent}:{os.environ['PATH']}"
    env = environment(tmp_path, PATH=path)
    env.pop("WINDLASS_RUNS")  # beside the example, as a reader's
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=580,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
