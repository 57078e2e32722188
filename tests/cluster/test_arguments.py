"""The user's arguments arrive in every rank byte for byte, through run, batch script and standalone batch script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cluster.command import SHOW, allocated, json_lines, only_run, windlass_argv, windlass_env
from cluster.hostile import HOSTILE
from cluster.slurm import SlurmCluster
from requirements import hydra_mpiexec, require_mpi

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


def _expected() -> list[str]:
    return [word.replace("{{}}", "{}") for word in HOSTILE]


def test_through_run_and_srun(slurm: SlurmCluster, hostile_dir: Path) -> None:
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "2", "--show", "all", str(SHOW), *HOSTILE)
    assert done.code == 0, done.text
    lines = json_lines(done.stdout)
    assert len(lines) == 4
    for line in lines:
        assert line["argv"] == _expected()
    assert not list(hostile_dir.rglob("pwned"))


@pytest.mark.mpi
def test_through_run_and_hydra(slurm: SlurmCluster, hostile_dir: Path) -> None:
    require_mpi()
    path = {"PATH": f"{hydra_mpiexec().parent}:/usr/bin:/bin:/usr/sbin:/sbin"}
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("--launcher", "hydra", "-r", "2", "--show", "all", str(SHOW), *HOSTILE, env=path)
    assert done.code == 0, done.text
    lines = json_lines(done.stdout)
    assert [line["argv"] for line in lines] == [_expected()] * 4


def test_on_this_machine_alone(slurm: SlurmCluster, hostile_dir: Path) -> None:
    words = ("--scheduler", "none", "-r", "2", "--show", "all", "--python", sys.executable, str(SHOW), *HOSTILE)
    done = slurm.run(windlass_argv("run", *words), env=windlass_env(hostile_dir), cwd=hostile_dir)
    assert done.code == 0, done.text
    assert [line["argv"] for line in json_lines(done.stdout)] == [_expected()] * 2


@pytest.mark.parametrize("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
def test_through_a_batch_script(slurm: SlurmCluster, hostile_dir: Path, kind: tuple[str, ...]) -> None:
    words = (*kind, "--python", sys.executable, "-N", "2", "-r", "2", str(SHOW), *HOSTILE)
    env = windlass_env(hostile_dir)
    said = slurm.run(windlass_argv("submit", *words), env=env, cwd=hostile_dir)
    assert said.code == 0, said.text
    ended = slurm.wait_job(said.stdout.strip(), timeout_s=60)
    run = only_run(hostile_dir)
    logs = slurm.run(windlass_argv("logs", str(run.path), "--rank", "all"), env=env, cwd=hostile_dir)
    assert ended["JobState"] == "COMPLETED", logs.stdout + slurm.state()
    assert [line["argv"] for line in json_lines(logs.stdout)] == [_expected()] * 4
    assert not list(hostile_dir.rglob("pwned"))


def test_values_of_variables_too(slurm: SlurmCluster, hostile_dir: Path) -> None:
    values = {f"MINE{at:02d}": value for at, value in enumerate(HOSTILE)}
    given = [word for name, value in values.items() for word in ("--env", f"{name}={value}")]
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        done = job.run_python("-r", "1", "--show", "all", *given, str(SHOW), env={"SHOW": "MINE*"})
    assert done.code == 0, done.text
    assert [line["environ"] for line in json_lines(done.stdout)] == [values] * 2
