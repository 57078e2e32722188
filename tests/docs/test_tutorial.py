"""The commands of the ten-minute tutorial, as they are printed, in the Slurm that the tutorial starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from markdown_links import DOCS, ROOT
from requirements import require_slurm, require_torch

PAGE = DOCS / "tutorial" / "ten-minutes.md"
SET_UP = (
    "make demo",
    ". .venv/bin/activate",
    "sudo scripts/debian-packages.sh slurm-wlm munge",
    "sudo scripts/local-slurm.sh",
    ". .venv/bin/activate",
)
"""What the machine of the tests has done already, or the test does itself."""


def printed() -> list[str]:
    return re.findall(r"^\$ ((?:.*\\\n)*.+)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def run_folders() -> Iterator[None]:
    """Folders of runs that a test makes in the clone go with it."""
    before = set((ROOT / "runs").glob("*"))
    yield
    for folder in set((ROOT / "runs").glob("*")) - before:
        shutil.rmtree(folder)
    if not before and (ROOT / "runs").is_dir():
        (ROOT / "runs").rmdir()


def in_local_slurm(script: str, home: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "WINDLASS_"))}
    env = kept | {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [str(ROOT / "scripts" / "local-slurm.sh"), "bash", "-c", script],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_the_tutorial_sets_up_what_the_machine_of_the_tests_has() -> None:
    assert tuple(printed()[: len(SET_UP)]) == SET_UP
    assert len(printed()) > len(SET_UP) + 6


@pytest.mark.slurm
def test_a_slurm_of_ones_own_answers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    require_slurm()
    script = 'sinfo -h -o "%D %t"; srun -N2 -n2 sh -c "echo on \\$SLURMD_NODENAME"; echo "$SLURM_CONF"; exit 7'
    done = in_local_slurm(script, tmp_path, 120)
    assert done.returncode == 7, done.stderr
    assert "2 idle" in done.stdout
    assert {"on node1", "on node2"} <= set(done.stdout.splitlines())
    folder = Path(done.stdout.splitlines()[-1]).parent
    assert folder.name.startswith("local-slurm.")
    assert not folder.exists()
    commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    assert not [words for words in commands if str(folder).encode() in words]


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_works_as_printed(tmp_path: Path, run_folders: None) -> None:
    require_slurm()
    require_torch()
    script = "\n".join(("set -e -o pipefail", *printed()[len(SET_UP) :]))
    done = in_local_slurm(script, tmp_path, 800)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for said in (
        "survive on generic-slurm: 2 nodes x 1 rank = 2 ranks, srun",
        "because each rank has",
        "resuming after step 249",
        "done: loss",
        "windlass: rank 1 on node2 was killed by SIGKILL",
        "windlass: the failure looks transient; restarting from the snapshot of step 249",
        "windlass: cache: 2 nodes asked the shared file system",
        "went-on: 1 of 2 starts failed",
        "report.html",
    ):
        assert said in done.stdout, f"{said!r} is not in\n{done.stdout}\n{done.stderr}"
