"""The scheduler takes the nodes back, on a real Slurm: the time is up, preemption in each way, a person cancels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.command import Allocation, Run, allocated, only_run
from cluster.slurm import Shape, SlurmCluster
from cluster.supervised import Training, ended, reference, same, steps_done, verdict
from requirements import require_slurm, require_torch
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _torch() -> None:
    require_torch()


def test_preemption_by_a_signal_saves_and_goes_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        child = job.popen("-r", "1", "--restarts", "1", *training.words(pause=0.3))
        with ended(child):
            wait_until(lambda: steps_done(training) >= 8, timeout_s=240, what="step 8")
            slurm.run(["scancel", "--signal=TERM", job.job_env["SLURM_JOB_ID"]], check=True)
            _, said = child.communicate(timeout=240)
        assert child.returncode == 0, said
    assert "saved and exited on request" in said
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() == 0
    same("preemption: `scancel --signal=TERM`", training, allowed=0)


def test_when_the_time_is_up_the_rest_goes_into_another_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Allocation(cluster=slurm, folder=tmp_path, job_env={})
    training = Training(job=job, folder=tmp_path)
    words = ("--python", sys.executable, "-N", "2", "-r", "1", "--time", "1", "--until-done", "--grace", "3")
    said = job.windlass("submit", *words, *training.words(pause=1.8))
    assert said.code == 0, said.text
    run = only_run(tmp_path)
    wait_until(lambda: _is_done(run), timeout_s=400, what="it is done", state=lambda: _log(run) + slurm.state())
    assert "the run continues in another job" in _log(run)
    assert job.windlass("runs", "list").stdout.startswith("done"), _log(run)
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() == 0
    assert verdict(run)["cause"]["kind"] == "walltime"
    same("the end of the allocation, with --until-done", training, allowed=0)


def _is_done(run: Run) -> bool:
    try:
        return bool(run.result["outcome"] == "ok")
    except (FileNotFoundError, ValueError):
        return False


def _log(run: Run) -> str:
    return "".join(path.read_text() for path in run.path.glob("job*.log"))


@pytest.fixture
def preempting_slurm() -> Iterator[SlurmCluster]:
    """A cluster on which urgent jobs take nodes from others."""
    require_slurm()
    with SlurmCluster(Shape(flavour="wide", preempting=True)) as cluster:
        yield cluster


def submitted(slurm: SlurmCluster, folder: Path, *words: str) -> tuple[Training, Run]:
    """A training in a batch job that is to be submitted again until it is done; on return it is at step 8."""
    job = Allocation(cluster=slurm, folder=folder, job_env={})
    training = Training(job=job, folder=folder)
    options = ("--python", sys.executable, "-N", "2", "-r", "1", "--time", "10", "--until-done", "--grace", "3")
    said = job.windlass("submit", *options, *words, *training.words(pause=0.4))
    assert said.code == 0, said.text
    run = only_run(folder)
    wait_until(lambda: steps_done(training) >= 8, timeout_s=240, what="step 8", state=lambda: _log(run) + slurm.state())
    return training, run


def take_all_nodes(slurm: SlurmCluster) -> None:
    """An urgent job for two seconds."""
    words = ["sbatch", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 2"]
    slurm.run(words, check=True)


@pytest.mark.parametrize(
    ("partition", "fault"),
    [
        ("cancelled", "preemption that cancels the job, with --until-done"),
        ("warned", "preemption after a warning (GraceTime), with --until-done"),
    ],
)
def test_a_preempted_job_is_submitted_again(
    preempting_slurm: SlurmCluster, tmp_path: Path, partition: str, fault: str
) -> None:
    slurm = preempting_slurm
    training, run = submitted(slurm, tmp_path, "--partition", partition)
    take_all_nodes(slurm)
    wait_until(lambda: _is_done(run), timeout_s=240, what="it is done", state=lambda: _log(run) + slurm.state())
    assert "the scheduler takes the nodes back" in _log(run), _log(run)
    assert _log(run).count("submitted again as job") == 1, _log(run)
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() == 0
    assert verdict(run)["cause"]["kind"] == "preempted"
    slurm.wait_quiet(timeout_s=30)
    same(fault, training, allowed=0)


def test_a_preempted_job_that_slurm_itself_puts_back_is_not_submitted_twice(
    preempting_slurm: SlurmCluster, tmp_path: Path
) -> None:
    slurm = preempting_slurm
    training, run = submitted(slurm, tmp_path, "--partition", "requeued")
    first = (run.path / "job_id").read_text()
    take_all_nodes(slurm)
    listing = Allocation(cluster=slurm, folder=tmp_path, job_env={})
    wait_until(lambda: slurm.jobs().get(first.strip()) == "PENDING", timeout_s=60, what="it waits", state=slurm.state)
    assert listing.windlass("runs", "list").stdout.startswith("waiting"), _log(run)
    wait_until(lambda: _is_done(run), timeout_s=240, what="it is done", state=lambda: _log(run) + slurm.state())
    assert (run.path / "job_id").read_text() == first
    assert "the scheduler has put the job back into its queue" in _log(run), "and its log was kept"
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() == 0
    same("preemption that requeues the job, with --until-done", training, allowed=0)


def test_a_job_that_a_person_cancels_is_not_submitted_again_but_can_be_resumed(
    preempting_slurm: SlurmCluster, tmp_path: Path
) -> None:
    slurm = preempting_slurm
    training, run = submitted(slurm, tmp_path)
    job_id = (run.path / "job_id").read_text().strip()
    slurm.run(["scancel", job_id], check=True)
    slurm.wait_quiet(timeout_s=60)
    job = Allocation(cluster=slurm, folder=tmp_path, job_env={})
    assert job.windlass("runs", "list").stdout.startswith("stopped"), _log(run)
    assert "submitted again" not in _log(run) and (run.path / "job_id").read_text().strip() == job_id
    again = job.windlass("runs", "resume", str(run.path))
    assert again.code == 0, again.text
    wait_until(lambda: _is_done(run), timeout_s=240, what="it is done", state=lambda: _log(run) + slurm.state())
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() == 0
    same("`scancel` by a person, with --until-done, then `windlass runs resume`", training, allowed=0)
