"""MPI programs under windlass: srun with PMI-2, and MPICH's own mpiexec."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from cluster.command import HELLO, allocated, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster
from requirements import hydra_mpiexec, require_mpi

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _mpi() -> None:
    require_mpi()


def _ranks(text: str) -> set[tuple[int, int, int]]:
    """Rank, size and sum of every line that `hello.py` printed."""
    found = re.findall(r"rank (\d+) of (\d+) on \S+: sum (\d+)", text)
    return {(int(rank), int(size), int(total)) for rank, size, total in found}


def _world(size: int) -> set[tuple[int, int, int]]:
    return {(rank, size, size * (size - 1) // 2) for rank in range(size)}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_mpi4py_ranks_under_srun_are_one_world(slurm: SlurmCluster, hostile_dir: Path, ranks: int) -> None:
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.run_python("--mpi", "pmi2", "-r", str(ranks), "--show", "all", str(HELLO), timeout_s=120)
    assert done.code == 0, done.text
    assert _ranks(done.stdout) == _world(4 * ranks)


def test_mpi4py_ranks_in_a_standalone_batch_script_are_one_world(slurm: SlurmCluster, hostile_dir: Path) -> None:
    words = ("--standalone", "--mpi", "pmi2", "-N", "2", "-r", "2", "--python", sys.executable, str(HELLO))
    env = windlass_env(hostile_dir)
    said = slurm.run(windlass_argv("submit", *words), env=env, cwd=hostile_dir, check=True)
    slurm.wait_job(said.stdout.strip(), timeout_s=90)
    (run,) = (hostile_dir / "runs").iterdir()
    logs = slurm.run(windlass_argv("logs", str(run), "--rank", "all"), env=env, cwd=hostile_dir, check=True)
    assert _ranks(logs.stdout) == _world(4)


def test_hydra_starts_one_world_on_the_nodes_of_a_slurm_job(slurm: SlurmCluster, hostile_dir: Path) -> None:
    path = {"PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"}
    with allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        words = ("--launcher", "hydra", "-r", "2", "--show", "all", str(HELLO))
        done = job.run_python(*words, timeout_s=120, env=path)
    assert done.code == 0, done.text
    assert _ranks(done.stdout) == _world(4)


def test_hydra_alone_starts_one_world_on_this_machine(slurm: SlurmCluster, hostile_dir: Path) -> None:
    env = {**windlass_env(hostile_dir), "PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"}
    words = ("--scheduler", "none", "--launcher", "hydra", "-r", "3", "--show", "all", str(HELLO))
    argv = windlass_argv("run", "--python", sys.executable, *words)
    done = slurm.run(argv, env=env, cwd=hostile_dir, timeout_s=120)
    assert done.code == 0, done.text
    assert _ranks(done.stdout) == _world(3)


def test_a_failing_rank_of_hydra_is_named(slurm: SlurmCluster, hostile_dir: Path) -> None:
    script = hostile_dir / "fails.py"
    script.write_text(
        "import os, time\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.Get_rank()\n"
        "if rank == 1:\n    print('about to fail', flush=True)\n    os._exit(5)  # sys.exit would finalize, and wait\n"
        "time.sleep(600)\n"
    )
    env = {**windlass_env(hostile_dir), "PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"}
    words = ("--scheduler", "none", "--launcher", "hydra", "-r", "2", str(script))
    argv = windlass_argv("run", "--python", sys.executable, *words)
    done = slurm.run(argv, env=env, cwd=hostile_dir, timeout_s=90)
    assert done.code == 5, done.text
    assert "rank 1" in done.stderr
    assert "about to fail" in done.stderr
