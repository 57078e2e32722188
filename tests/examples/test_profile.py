"""examples/profile: one rank of several is profiled, and the report knows which."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from cluster.command import allocated, only_run
from cluster.slurm import SlurmCluster
from requirements import require_torch
from unit.cli.typed import windlass

FOLDER = Path(__file__).parents[2] / "examples" / "profile"
pytestmark = [pytest.mark.torch, pytest.mark.timeout(560)]


def commands() -> list[list[str]]:
    """The two runs of the README, with the script's place in full and the interpreter of the tests."""
    lines = re.findall(r"^windlass (run .*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    wide, small = (shlex.split(line.replace("../ddp", str(FOLDER.parent / "ddp"))) for line in lines)
    return [[words[0], "--python", sys.executable, "--threads", "1", *words[1:]] for words in (wide, small)]


def profiled(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "profile").iterdir())


def test_one_rank_of_two_is_profiled_and_reported(tmp_path: Path) -> None:
    require_torch()
    done = windlass(*commands()[1], "--batch", "4", cwd=tmp_path, timeout_s=300)
    assert done.code == 0, done.text
    run = only_run(tmp_path).path
    assert profiled(run) == ["rank-1.json", "rank-1.trace.json", "rank-1.txt"]
    assert "rank 1: 32 steps" in (run / "profile" / "rank-1.txt").read_text()
    told = windlass("report", cwd=tmp_path)
    assert "profile/rank-1.txt" in told.stdout, told.text
    assert "straggler: rank 1" not in told.stdout
    assert (run / "report.html").exists()


@pytest.mark.slow
@pytest.mark.slurm
def test_one_rank_of_sixteen_is_profiled_on_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_torch()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.windlass(*commands()[0], "--steps", "45", "--batch", "2", timeout_s=500)
    assert done.code == 0, done.text
    run = only_run(tmp_path).path
    assert profiled(run) == ["rank-14.json", "rank-14.trace.json", "rank-14.txt"]
    assert json.loads((run / "profile" / "rank-14.json").read_text())["steps"] == 32
