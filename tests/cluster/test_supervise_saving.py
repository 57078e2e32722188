"""Saves that go wrong under supervision on a real Slurm, and runs that go on with another number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.command import allocated, only_run
from cluster.faults import tell_fault
from cluster.slurm import Shape, SlurmCluster
from cluster.supervised import EVERY, STEPS, Training, reference, same, verdict
from requirements import require_slurm, require_torch

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _torch() -> None:
    require_torch()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3)])
def test_a_run_goes_on_with_fewer_and_with_more_ranks(
    slurm: SlurmCluster, tmp_path: Path, before: int, after: int
) -> None:
    with allocated(slurm, tmp_path, "-N3", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        words = ("-N", str(before), "-r", "1", "--hang-after", "300", *training.words("kill:18:1"))
        failed = job.run_python(*words, timeout_s=240)
        assert failed.code == 137, failed.text
        path = str(only_run(tmp_path).path)
        done = job.windlass("runs", "resume", path, "-N", str(after), timeout_s=240)
    assert done.code == 0, done.text
    found, wanted = _last_losses(training), reference(before, tmp_path)
    assert {step: found[step] for step in range(15)} == {step: wanted[step] for step in range(15)}
    for step in range(STEPS):  # the global batch is the same, only the order of sums differs
        assert float.fromhex(found[step]) == pytest.approx(float.fromhex(wanted[step]), rel=1e-5), step
    fault = f"a rank killed, then `windlass runs resume -N {after}` instead of {before} nodes with one rank each"
    tell_fault(fault, only_run(tmp_path).path, repeated=training.repeated(), losses="within 1e-5", allowed=EVERY)


def _last_losses(training: Training) -> dict[int, str]:
    return {int(line.split()[0]): line.split()[1] for line in training.losses_file.read_text().splitlines()}


@pytest.mark.parametrize(
    ("fault", "allowed", "name"),
    [
        ("torn:13:0", 2 * EVERY, "a rank killed in the middle of a save"),
        ("corrupt:18:1", 2 * EVERY, "the newest snapshot destroyed on disk, and a rank killed"),
        ("limit:9:1", 5 * EVERY, "a limit on file size on one rank: three saves in a row fail"),
    ],
)
def test_faults_of_saving_cost_no_more_than_the_snapshots_that_they_destroy(
    slurm: SlurmCluster, tmp_path: Path, fault: str, allowed: int, name: str
) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path)
        done = job.run_python("-r", "1", "--restarts", "2", *training.words(fault), timeout_s=240)
    assert done.code == 0, done.text
    assert training.losses() == reference(2, tmp_path)
    assert 0 < training.repeated() <= allowed
    same(name, training, allowed=allowed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[SlurmCluster, Path]]:
    """A cluster whose nodes share a file system of two megabytes. It is mounted where only they see it, and is gone
    with them."""
    require_slurm()
    disk = tmp_path / "disk"
    disk.mkdir()
    with SlurmCluster(Shape(flavour="wide")) as cluster:
        cluster.inside(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)])
        yield cluster, disk


def test_a_disk_that_is_full_for_a_while_costs_the_saves_of_that_while(
    small_disk: tuple[SlurmCluster, Path], tmp_path: Path
) -> None:
    slurm, disk = small_disk
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path, disk=disk)
        done = job.run_python("-r", "1", "--restarts", "1", *training.words("fill:8:1", "free:12:1"), timeout_s=240)
    assert done.code == 0, done.text
    assert "step 9 was not saved" in done.stdout and "No space left on device" in done.stdout, done.text
    assert training.losses() == reference(2, tmp_path)
    assert training.repeated() == 0
    said = next(line for line in done.stdout.splitlines() if "step 9 was not saved" in line).partition("windlass: ")[2]
    same("a full file system, freed some steps later", training, allowed=0, seen=said.replace(str(tmp_path), "…"))


def test_a_disk_that_stays_full_ends_the_run_and_it_goes_on_when_there_is_space(
    small_disk: tuple[SlurmCluster, Path], tmp_path: Path
) -> None:
    slurm, disk = small_disk
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        training = Training(job=job, folder=tmp_path, disk=disk)
        failed = job.run_python("-r", "1", "--restarts", "5", *training.words("fill:8:1"), timeout_s=240)
        assert failed.code == 1, failed.text
        assert "No space left on device" in failed.stderr and "a file system is full" in failed.stderr
        run = only_run(tmp_path)
        slurm.inside(["rm", str(disk / "filler")])
        done = job.windlass("runs", "resume", str(run.path), timeout_s=240)
    assert done.code == 0, done.text
    assert verdict(run)["cause"]["kind"] == "disk"
    assert training.losses() == reference(2, tmp_path)
    assert 0 < training.repeated() <= 4 * EVERY
    fault = "a full file system that stays full: three saves fail; space is freed, then `windlass runs resume`"
    same(fault, training, allowed=4 * EVERY)
