"""windlass inside a step of the job: `srun --pty bash` is how many people get an interactive node."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.command import SHOW, json_lines, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def test_ranks_start_beside_the_step_that_windlass_is_in(slurm: SlurmCluster, tmp_path: Path) -> None:
    env = {**windlass_env(tmp_path), "SHOW": "RANK WORLD_SIZE"}
    run = windlass_argv("run", "-N", "2", "-r", "2", str(SHOW))
    said = slurm.run(
        ("salloc", "-N", "2", "--exclusive", "srun", "-N", "1", "-n", "1", *run), env=env, cwd=tmp_path, timeout_s=120
    )
    assert said.code == 0, said.text
    assert [line["environ"]["WORLD_SIZE"] for line in json_lines(said.stdout)] == ["4"], "rank 0 is shown"


def test_windlass_started_as_several_tasks_is_refused_by_each_of_them(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = windlass_argv("run", str(SHOW))
    said = slurm.run(("srun", "-N", "2", "-n", "2", *run), env=windlass_env(tmp_path), cwd=tmp_path, timeout_s=120)
    assert said.code != 0 and "2 tasks of one step" in said.stderr
    assert "start windlass itself once" in said.stderr
