"""`windlass submit`: a readable batch script, a job id, and the same run in the job as `windlass run` makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cluster.command import SHOW, TRAIN, json_lines, only_run, windlass_argv, windlass_env
from cluster.slurm import Ended, SlurmCluster
from requirements import require_torch

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def _submit(slurm: SlurmCluster, folder: Path, *words: str, show: str = "RANK WORLD_SIZE MASTER_ADDR") -> Ended:
    argv = windlass_argv("submit", "--python", sys.executable, *words)
    return slurm.run(argv, env={**windlass_env(folder), "SHOW": show}, cwd=folder)


def _logs(slurm: SlurmCluster, folder: Path) -> str:
    argv = windlass_argv("logs", str(only_run(folder).path), "--rank", "all")
    return slurm.run(argv, env=windlass_env(folder), cwd=folder, check=True).stdout


@pytest.mark.parametrize("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_submitted_script_runs_on_all_its_nodes(
    slurm: SlurmCluster, hostile_dir: Path, kind: tuple[str, ...], ranks: int
) -> None:
    said = _submit(slurm, hostile_dir, *kind, "-N", "3", "-r", str(ranks), str(SHOW))
    assert said.code == 0, said.text
    job_id = said.stdout.strip()
    assert job_id.isdecimal(), "only the job id on stdout, for scripts that want it"
    ended = slurm.wait_job(job_id, timeout_s=60)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), _logs(slurm, hostile_dir)
    lines = json_lines(_logs(slurm, hostile_dir))
    seen = {(int(line["environ"]["RANK"]), line["host"]) for line in lines}
    assert seen == {(rank, f"nid{1 + rank // ranks:04d}") for rank in range(3 * ranks)}
    assert {line["environ"]["WORLD_SIZE"] for line in lines} == {str(3 * ranks)}


@pytest.mark.parametrize("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
def test_the_cpus_of_a_submitted_run_are_those_of_its_plan(
    slurm_bound: SlurmCluster, hostile_dir: Path, kind: tuple[str, ...]
) -> None:
    said = _submit(slurm_bound, hostile_dir, *kind, "-N", "2", "-r", "2", "--directive=--exclusive", str(SHOW))
    assert said.code == 0, said.text
    slurm_bound.wait_job(said.stdout.strip(), timeout_s=60)
    got = {int(line["environ"]["RANK"]): line["cpus"] for line in json_lines(_logs(slurm_bound, hostile_dir))}
    assert set(got) == {0, 1, 2, 3}
    planned = [rank.get("cpus", []) for rank in only_run(hostile_dir).plan["binding"]["ranks"]]
    if kind:  # made where no node could be seen: Slurm gives each rank cores of its own
        assert not set(got[0]) & set(got[1])
    else:
        assert got == {rank: planned[rank % 2] for rank in range(4)}


@pytest.mark.parametrize("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
def test_a_failing_rank_fails_the_job_with_its_code(
    slurm: SlurmCluster, hostile_dir: Path, kind: tuple[str, ...]
) -> None:
    script = hostile_dir / "fails.py"
    script.write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(600)\n")
    said = _submit(slurm, hostile_dir, *kind, "-N", "2", "-r", "1", str(script))
    ended = slurm.wait_job(said.stdout.strip(), timeout_s=90)
    assert ended["JobState"] == "FAILED"
    # srun alone gives the largest code, and 143 is that of a rank which it ended; windlass gives the first one's.
    assert ended["ExitCode"] == ("143:0" if kind else "7:0")


@pytest.mark.torch
@pytest.mark.parametrize("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
def test_gloo_meets_at_the_first_node(slurm: SlurmCluster, hostile_dir: Path, kind: tuple[str, ...]) -> None:
    require_torch()
    words = ("-N", "2", "-r", "1", "--threads", "1", str(TRAIN), "--steps", "8", "--batch", "32")
    said = _submit(slurm, hostile_dir, *kind, *words)
    ended = slurm.wait_job(said.stdout.strip(), timeout_s=150)
    assert ended["JobState"] == "COMPLETED", _logs(slurm, hostile_dir)
    assert "done: loss" in _logs(slurm, hostile_dir)


@pytest.mark.parametrize("kind", [(), ("--standalone",)], ids=["with-windlass", "standalone"])
def test_a_printed_script_runs_as_it_is_each_time_that_sbatch_gets_it(
    slurm: SlurmCluster, hostile_dir: Path, kind: tuple[str, ...]
) -> None:
    said = _submit(slurm, hostile_dir, "--dry-run", *kind, "-N", "2", "-r", "1", "--time", "10", str(SHOW))
    assert said.code == 0, said.text
    assert not slurm.jobs() and not (hostile_dir / "runs").exists(), "a dry run leaves no trace"
    script = hostile_dir / "printed.sh"
    script.write_text(said.stdout)
    for number in range(1 if kind else 2):
        told = slurm.run(["sbatch", "--parsable", str(script)], env=windlass_env(hostile_dir), cwd=hostile_dir)
        assert told.code == 0, told.text
        ended = slurm.wait_job(told.stdout.strip(), timeout_s=60)
        log = (hostile_dir / f"slurm-{told.stdout.strip()}.out").read_text()
        assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log
        runs = list((hostile_dir / "runs").iterdir())
        assert len(runs) == number + 1
    logs = "".join(path.read_text() for path in (hostile_dir / "runs").glob("*/out/node-*.log"))
    seen = {(line["environ"]["RANK"], line["host"]) for line in json_lines(logs.replace("0: ", "").replace("1: ", ""))}
    assert {host for _, host in seen} == {"nid0001", "nid0002"}
    assert kind or (runs[0] / "batch.sh").exists(), "the run can be sent again"


def test_a_job_that_slurm_will_never_start_is_told(slurm: SlurmCluster, hostile_dir: Path) -> None:
    first = slurm.run(["sbatch", "--parsable", "--output=/dev/null", "--wrap", "exit 1"], check=True).stdout.strip()
    assert slurm.wait_job(first, timeout_s=60)["JobState"] == "FAILED"
    said = _submit(slurm, hostile_dir, f"--directive=--dependency=afterok:{first}", "-N", "1", "-r", "1", str(SHOW))
    job_id = said.stdout.strip()
    try:
        assert f"never-starts: job {job_id} will not start: DependencyNeverSatisfied" in said.stderr, said.text
    finally:
        slurm.run(["scancel", job_id], check=True)


def test_a_refused_submission_says_why_in_words(slurm: SlurmCluster, hostile_dir: Path) -> None:
    said = _submit(slurm, hostile_dir, "--partition", "no-such", "-N", "2", "-r", "1", str(SHOW))
    assert said.code in (2, 3), said.text
    assert "partition" in said.stderr
    assert "Traceback" not in said.stderr
    assert not list((hostile_dir / "runs").iterdir()), "nothing is left of a job that will not be"
    there = hostile_dir / "there"
    there.mkdir()
    (there / "mine").touch()
    said = _submit(slurm, hostile_dir, "--partition", "no-such", "-N", "2", "--run-dir", str(there), str(SHOW))
    assert said.code in (2, 3) and [path.name for path in there.iterdir()] == ["mine"], said.text


def test_more_nodes_than_there_are_is_refused(slurm: SlurmCluster, hostile_dir: Path) -> None:
    said = _submit(slurm, hostile_dir, "-N", "99", "-r", "1", str(SHOW))
    assert said.code in (2, 3), said.text
    assert "Traceback" not in said.stderr
    assert not slurm.jobs()


def test_run_outside_of_a_job_is_refused_with_a_hint(slurm: SlurmCluster, hostile_dir: Path) -> None:
    argv = windlass_argv("run", "--python", sys.executable, "-r", "1", str(SHOW))
    done = slurm.run(argv, env=windlass_env(hostile_dir), cwd=hostile_dir)
    assert done.code == 2, done.text
    assert "windlass submit" in done.stderr
