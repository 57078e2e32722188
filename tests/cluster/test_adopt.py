"""`windlass sites adopt` on a real Slurm: the file is right, and plans elsewhere as in the allocation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.command import SHOW, allocated, windlass_argv, windlass_env
from cluster.slurm import Ended, Shape, SlurmCluster
from requirements import require_slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


def outside(cluster: SlurmCluster, folder: Path, *words: str) -> Ended:
    return cluster.run(windlass_argv(*words), env=windlass_env(folder), cwd=folder)


def without_origins(plan: object) -> Any:
    """The plan without what only says where things come from, which hosts it has and how they were seen."""
    left_out = {"origin", "origins", "hosts", "job_id", "site_file", "allowed", "probed"}
    if isinstance(plan, dict):
        return {key: without_origins(value) for key, value in plan.items() if key not in left_out}
    return [without_origins(item) for item in plan] if isinstance(plan, list) else plan


def test_the_file_of_an_adopted_cluster_plans_elsewhere_as_in_the_allocation(
    slurm_bound: SlurmCluster, tmp_path: Path
) -> None:
    file = tmp_path / "bluebox.toml"
    words = ("--json", "-N", "2", "--python", sys.executable, str(SHOW))
    with allocated(slurm_bound, tmp_path, "-N", "2", "--exclusive") as job:
        adopted = job.windlass("sites", "adopt", "bluebox", "--output", str(file))
        assert adopted.code == 0, adopted.text
        inside = job.windlass("plan", *words, env={"WINDLASS_SITE_FILE": str(file)})
        unknown = job.windlass("plan", *words)
    checked = outside(slurm_bound, tmp_path, "sites", "check", str(file))
    assert (checked.code, checked.stdout) == (0, "no problems\n"), checked.text
    elsewhere = outside(slurm_bound, tmp_path, "plan", "--site", str(file), *words)
    assert elsewhere.code == 0, elsewhere.text
    plans = [without_origins(json.loads(said.stdout)) for said in (elsewhere, inside, unknown)]
    assert plans[0] == plans[1]
    for key in ("ranks_per_node", "binding", "launch", "environment"):
        assert plans[0][key] == plans[2][key], f"{key}: as without any site file"


def test_a_login_node_adopts_partitions_and_says_how_to_add_the_node(tmp_path: Path) -> None:
    require_slurm()
    file = tmp_path / "bluebox.toml"
    with SlurmCluster(Shape(flavour="wide", nodes=3, gpus=2)) as cluster:
        adopted = outside(cluster, tmp_path, "sites", "adopt", "bluebox", "--output", str(file))
        assert adopted.code == 0, adopted.text
        assert "sites adopt bluebox --force` inside an allocation" in adopted.stdout
        assert "\n[node]" not in file.read_text()
        checked = outside(cluster, tmp_path, "sites", "check", str(file))
        assert (checked.code, checked.stdout) == (0, "no problems\n"), checked.text
        plan = outside(cluster, tmp_path, "plan", "--site", str(file), "-N", "2", str(SHOW))
        assert "--gres=gpu:2" in plan.stdout, plan.text
        many = outside(cluster, tmp_path, "plan", "--site", str(file), "-N", "3", str(SHOW))
        assert many.code == 2 and "takes jobs of at most 2 nodes" in many.stderr
