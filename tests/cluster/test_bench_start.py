"""`bench/start.py` inside an allocation: Slurm's own sbcast beside the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.command import REPO, allocated
from cluster.slurm import SlurmCluster
from requirements import require_fuse

pytestmark = [pytest.mark.slurm, pytest.mark.fuse, pytest.mark.timeout(120)]


def test_sbcast_is_measured_inside_an_allocation(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_fuse()
    env = tmp_path / "env"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(env)], check=True, timeout=60)
    (site,) = (env / "lib").glob("python3*/site-packages")
    (site / "small.py").write_text("")
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        words = ("--env", str(env), "--import", "small", "--nodes", "2,3", "--repeats", "1", "--cases", "sbcast,stage")
        argv = [sys.executable, str(REPO / "bench" / "start.py"), *words, "--work", str(tmp_path), "--json"]
        done = slurm.run(argv, timeout_s=90, env=job.env, cwd=tmp_path)
    assert done.code == 0, done.text
    two, other, three, _ = json.loads(done.stdout)
    assert two["case"] == "sbcast" and two["seconds"] > 0 and two["shared_bytes"] > 0
    assert other["case"] == "stage" and other["shared_bytes"] > 0
    assert three["seconds"] is None and "has 2 nodes" in three["not_measured"]
