"""`windlass bench` inside a Slurm allocation of several nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from requirements import require_torch

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.timeout(240)]


def test_collectives_over_two_nodes_are_measured_checked_and_recorded(slurm: SlurmCluster, hostile_dir: Path) -> None:
    require_torch()
    words = (
        "--op",
        "all_reduce,all_gather",
        "--sizes",
        "1K,64K",
        "--iters",
        "3",
        "--warmup",
        "1",
        "--env",
        "OMP_NUM_THREADS=1",
    )
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.windlass("bench", "collectives", "--python", sys.executable, "-r", "2", *words, timeout_s=200)
    assert done.code == 0, done.text
    (path,) = (hostile_dir / "runs").glob("*/record.json")
    record = json.loads(path.read_text())
    assert record["where"]["nodes"] == 2
    assert record["where"]["scheduler"] == "slurm"
    assert record["where"]["job_id"] == job.job_env["SLURM_JOB_ID"]
    assert [(seat["rank"], seat["host"]) for seat in record["where"]["ranks"]] == [
        (0, "nid0001"),
        (1, "nid0001"),
        (2, "nid0002"),
        (3, "nid0002"),
    ]
    assert len(record["rows"]) == 8
    assert all(row["wrong"] == 0 and row["labels"]["ranks"] == 4 for row in record["rows"])
    assert "# all_reduce over 4 ranks on 2 nodes" in done.stdout


@pytest.mark.slow
def test_scaling_from_one_node_to_two(slurm: SlurmCluster, hostile_dir: Path) -> None:
    require_torch()
    words = (
        "--model",
        "tiny",
        "--sequence",
        "16",
        "--steps",
        "2",
        "--warmup",
        "1",
        "--ceiling",
        "0",
        "--env",
        "OMP_NUM_THREADS=1",
    )
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        start = ("bench", "scale", "llm", "--nodes", "1,2", "-r", "1", "--python", sys.executable)
        done = job.windlass(*start, *words, timeout_s=230)
    assert done.code == 0, done.text
    (path,) = (hostile_dir / "runs").glob("*/record.json")
    rows = json.loads(path.read_text())["rows"]
    assert [(row["labels"]["nodes"], row["labels"]["ranks"]) for row in rows] == [(1, 1), (2, 2)]
    assert rows[0]["figures"]["efficiency"]["value"] == 1.0
    assert "efficiency" in done.stdout
