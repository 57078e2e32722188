"""`Snapshot` over several real ranks (torch, gloo): the same losses, other numbers of ranks, one rank in trouble."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from requirements import require_torch
from unit.runtime.ranks import Training, losses, train
from waiting import wait_until
from windlass.runtime import RESUME_ME, store
from windlass.runtime.lease import read_holder

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def saved_steps(folder: Path) -> list[int]:
    return [found.step for found in store.list_snapshots(folder)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Losses of runs that never stopped: two ranks of each kind, and one rank without anything random."""
    folder = tmp_path_factory.mktemp("whole")
    runs = {"ddp": (2, "--kind", "ddp"), "fsdp": (2, "--kind", "fsdp"), "alone": (1, "--dropout", 0, "--no-norm")}
    for name, (world, *options) in runs.items():
        train(world, folder / name, 12, "--losses", folder / f"{name}.txt", *options)
    return {name: losses(folder / f"{name}.txt") for name in runs}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_interrupted_on_one_of_them_go_on_bit_for_bit(
    tmp_path: Path, kind: str, whole: dict[str, dict[str, str]]
) -> None:
    again = (tmp_path / "b", 12, "--losses", tmp_path / "b.txt", "--kind", kind, "--every-steps", 4)
    said = train(2, *again, "--kill-self", "SIGTERM:5:1", code=RESUME_ME)
    stopped = saved_steps(tmp_path / "b")[0]
    assert 5 <= stopped < 11 and f"SIGTERM: saved step {stopped}" in said
    assert read_holder(tmp_path / "b") is None
    assert f"resuming after step {stopped}" in train(2, *again)
    assert losses(tmp_path / "b.txt") == whole[kind]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        pytest.param("ddp", 2, 1, marks=pytest.mark.slow),
        pytest.param("ddp", 1, 3, marks=pytest.mark.slow),
        ("fsdp", 2, 3),
        pytest.param("fsdp", 3, 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    tmp_path: Path, kind: str, before: int, after: int, whole: dict[str, dict[str, str]]
) -> None:
    options = ("--kind", kind, "--dropout", 0, "--every-steps", 4, "--no-norm")
    again = (tmp_path / "b", 12, "--losses", tmp_path / "b.txt", *options)
    train(before, *again, "--kill-self", "SIGTERM:5", code=RESUME_ME)
    stopped = saved_steps(tmp_path / "b")[0]
    assert 5 <= stopped < 11
    said = train(after, *again)
    assert f"resuming after step {stopped} from {tmp_path / 'b'}/step-{stopped:09d}, saved by {before} rank(s)" in said
    parts = losses(tmp_path / "b.txt")
    for step in range(12):
        # The global batch is the same; only the order of the sum over ranks differs.
        assert float.fromhex(parts[str(step)]) == pytest.approx(float.fromhex(whole["alone"][str(step)]), rel=1e-4)


def test_a_rank_killed_hard_costs_at_most_the_steps_since_the_last_snapshot(
    tmp_path: Path, whole: dict[str, dict[str, str]]
) -> None:
    options = ("--kind", "ddp", "--every-steps", 3, "--blocking")
    again = (tmp_path / "b", 12, "--losses", tmp_path / "b.txt", *options)
    with Training(2, *again, "--kill-self", "SIGKILL:7:1") as training:
        survivor, killed = training.wait()
    assert killed.code == -signal.SIGKILL
    assert survivor.code not in (0, RESUME_ME)
    assert saved_steps(tmp_path / "b")[0] == 5
    said = train(2, *again)
    assert "resuming after step 5" in said
    assert losses(tmp_path / "b.txt") == whole["ddp"]


def test_a_mistake_in_the_users_code_ends_quickly_with_its_traceback(tmp_path: Path) -> None:
    with Training(2, tmp_path, 50, "--kind", "ddp", "--every-steps", 3, "--bug", "4:0") as training:
        guilty, other = training.wait()
    assert guilty.code == 1 and "ValueError: a mistake in the user's code" in guilty.output
    assert other.code not in (0, RESUME_ME)
    assert read_holder(tmp_path) is None


def test_ranks_that_call_step_at_different_steps_are_told(tmp_path: Path) -> None:
    with Training(2, tmp_path, 8, "--shift-steps") as training:
        ended = training.wait()
    assert all(e.code == 1 for e in ended), [e.output for e in ended]
    assert all("the ranks are at different steps: 0 to 1" in e.output for e in ended)


def test_a_second_job_on_the_folder_is_refused_on_every_rank(tmp_path: Path) -> None:
    with Training(2, tmp_path, 1000, "--kind", "ddp", "--pause", 0.05, "--every-steps", 4) as first:
        wait_until(lambda: saved_steps(tmp_path), timeout_s=100, what="the first snapshot")
        with Training(2, tmp_path, 1000, "--kind", "ddp") as second:
            refused = second.wait()
        for rank in first.ranks:
            rank.send_signal(signal.SIGTERM)
        ended = first.wait()
    assert [e.code for e in refused] == [1, 1]
    assert all(f"in use by another run: process {first.ranks[0].pid} of" in e.output for e in refused)
    assert [e.code for e in ended] == [RESUME_ME] * 2


@pytest.mark.slow
def test_killed_again_and_again_at_random_moments_it_still_ends_with_the_same_losses(tmp_path: Path) -> None:
    options = ("--kind", "ddp", "--every-s", 0.05, "--pause", 0.01, "--width", 256)
    train(2, tmp_path / "a", 150, "--losses", tmp_path / "a.txt", *options)
    again = (tmp_path / "b", 150, "--losses", tmp_path / "b.txt", *options)

    def newest() -> int:
        return (saved_steps(tmp_path / "b") or [-1])[0]

    for round_number in range(6):
        with Training(2, *again) as training:
            wanted = newest() + 5
            wait_until(lambda: newest() >= wanted, timeout_s=100, what=f"step {wanted}", every_s=0.003)  # noqa: B023
            os.kill(training.ranks[round_number % 2].pid, signal.SIGKILL)
            training.wait()
    train(2, *again)
    assert losses(tmp_path / "b.txt") == losses(tmp_path / "a.txt")
