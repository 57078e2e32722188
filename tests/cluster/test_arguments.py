"""The user's arguments arrive in every rank byte for byte, through run, batch script and standalone batch script."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cluster.command import SHOW, allocated, windlass_argv, windlass_env
from cluster.hostile import HOSTILE
from cluster.slurm import SlurmCluster
from requirements import hydra_mpiexec, require_mpi

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


@pytest.fixture
def answers(hostile_dir: Path) -> Path:
    """Where the ranks write what arrived."""
    folder = hostile_dir / "answers"
    folder.mkdir()
    return folder


def _arrived(answers: Path) -> list[list[str]]:
    return [json.loads(path.read_text())["argv"] for path in sorted(answers.iterdir())]


def _env(answers: Path) -> dict[str, str]:
    return {**windlass_env(answers.parent), "SHOW_TO": str(answers)}


def test_through_run_and_srun(slurm: SlurmCluster, hostile_dir: Path, answers: Path) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "2", str(SHOW), *HOSTILE, env=_env(answers))
    assert done.code == 0, done.text
    assert _arrived(answers) == [list(HOSTILE)] * 4
    assert not list(hostile_dir.rglob("pwned"))


@pytest.mark.mpi
def test_through_run_and_hydra(slurm: SlurmCluster, hostile_dir: Path, answers: Path) -> None:
    require_mpi()
    path = {"PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"}
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("--launcher", "hydra", "-r", "2", str(SHOW), *HOSTILE, env={**_env(answers), **path})
    assert done.code == 0, done.text
    assert _arrived(answers) == [list(HOSTILE)] * 4


def test_on_this_machine_alone(slurm: SlurmCluster, hostile_dir: Path, answers: Path) -> None:
    words = ("--scheduler", "none", "-r", "2", "--python", sys.executable, str(SHOW), *HOSTILE)
    done = slurm.run(windlass_argv("run", *words), env=_env(answers), cwd=hostile_dir)
    assert done.code == 0, done.text
    assert _arrived(answers) == [list(HOSTILE)] * 2


@pytest.mark.parametrize("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
def test_through_a_batch_script(slurm: SlurmCluster, hostile_dir: Path, answers: Path, kind: tuple[str, ...]) -> None:
    words = (*kind, "--python", sys.executable, "-N", "2", "-r", "2", str(SHOW), *HOSTILE)
    said = slurm.run(windlass_argv("submit", *words), env=_env(answers), cwd=hostile_dir)
    assert said.code == 0, said.text
    ended = slurm.wait_job(said.stdout.strip(), timeout_s=60)
    assert ended["JobState"] == "COMPLETED", slurm.state()
    assert _arrived(answers) == [list(HOSTILE)] * 4
    assert not list(hostile_dir.rglob("pwned"))


def test_values_of_variables_too(slurm: SlurmCluster, hostile_dir: Path, answers: Path) -> None:
    values = {f"MINE{at:02d}": value for at, value in enumerate(HOSTILE)}
    given = [word for name, value in values.items() for word in ("--env", f"{name}={value}")]
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "1", *given, str(SHOW), env={**_env(answers), "SHOW": "MINE*"})
    assert done.code == 0, done.text
    got = [json.loads(path.read_text())["environ"] for path in sorted(answers.iterdir())]
    assert got == [values] * 2
