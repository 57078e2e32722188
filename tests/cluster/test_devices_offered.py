"""A cluster that is in no catalog: what its scheduler offers is asked for, with one rank per device."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.command import SHOW, json_lines, only_run, windlass_argv, windlass_env
from cluster.slurm import Ended, Shape, SlurmCluster
from requirements import require_slurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    require_slurm()
    with SlurmCluster(Shape(flavour="wide", nodes=3, gpus=2)) as made:
        yield made


def _windlass(cluster: SlurmCluster, folder: Path, *words: str) -> Ended:
    argv = windlass_argv(words[0], "--site", "generic-slurm", "--python", sys.executable, *words[1:], str(SHOW))
    return cluster.run(argv, env={**windlass_env(folder), "SHOW": "RANK WORLD_SIZE"}, cwd=folder)


def test_a_job_asks_for_the_devices_of_its_partition_and_has_a_rank_for_each(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    said = _windlass(cluster, tmp_path, "submit", "-N", "2")
    assert said.code == 0, said.text
    script = (only_run(tmp_path).path / "batch.sh").read_text()
    assert "--gres=gpu:2" in script and "--ntasks-per-node=2" in script and "--cpus-per-task=8" in script
    job = said.stdout.strip()
    got = cluster.run(("scontrol", "--oneliner", "show", "job", job), check=True).stdout
    assert "gres/gpu" in got or "gpu:2" in got, got
    ended = cluster.wait_job(job, timeout_s=120)
    assert ended["JobState"] == "COMPLETED"
    logs = cluster.run(
        windlass_argv("logs", str(only_run(tmp_path).path), "--rank", "all"), env=windlass_env(tmp_path), check=True
    )
    assert sorted(int(line["environ"]["RANK"]) for line in json_lines(logs.stdout)) == [0, 1, 2, 3]


def test_the_partition_that_was_named_decides(cluster: SlurmCluster, tmp_path: Path) -> None:
    said = _windlass(cluster, tmp_path, "plan", "--json", "-p", "cpu", "--account", "x")
    plan = json.loads(said.stdout)
    assert plan["ranks_per_node"] == 1
    assert not any("gres" in word for argument in plan["directives"] for word in argument["words"])


def test_our_number_decides_and_none_is_warned_about(cluster: SlurmCluster, tmp_path: Path) -> None:
    one = _windlass(cluster, tmp_path, "plan", "--gpus-per-node", "1")
    assert "--gres=gpu:1" in one.stdout and "--cpus-per-task=8" in one.stdout
    none = _windlass(cluster, tmp_path, "plan", "--gpus-per-node", "0")
    assert "gres" not in none.stdout and "requests no device, but its nodes have 2" in none.text
    many = _windlass(cluster, tmp_path, "plan", "--gpus-per-node", "3")
    assert many.code == 2 and "--gpus-per-node 3, but a node has 2" in many.stderr


def test_a_plan_says_that_the_node_is_not_known_yet(cluster: SlurmCluster, tmp_path: Path) -> None:
    said = _windlass(cluster, tmp_path, "plan", "-N", "2")
    assert "the node is unknown here" in said.stdout
    assert "partition batch offers 2 devices per node" in said.stdout
