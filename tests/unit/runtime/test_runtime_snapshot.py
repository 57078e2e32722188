"""`Snapshot` in one process: what a script sees, and every refusal."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements import require_torch
from windlass.errors import MachineError, UsageError, VersionError
from windlass.runtime import RESUME_ME, ResumeLater, Snapshot, codes, store
from windlass.runtime.hold import HeldError, read_holder, take

require_torch()
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher's variables, and no handler of a former loop."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_JOB_END_TIME", codes.DEADLINE, codes.HEARTBEAT):
        monkeypatch.delenv(name, raising=False)
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    assert {s: signal.getsignal(s) for s in before} == before


class Training:
    """A model that learns noise, with dropout: every step needs the generators to be right."""

    def __init__(self, *, width: int = 8, optimizer: str = "adamw") -> None:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        self.model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1))
        makers = {
            "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
            "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        }
        self.optimizer = makers[optimizer](self.model.parameters())

    def advance(self) -> str:
        inputs = torch.randn(6, 4) + random.random() + float(np.random.rand())
        loss = self.model(inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach()).hex()

    def run(self, folder: Path, steps: int, *, stop_at: int | None = None, **options: Any) -> dict[int, str]:
        options = {"every_steps": 3, "background": False, **options}
        snapshot = Snapshot(folder, model=self.model, optimizer=self.optimizer, **options)
        seen = {}
        for step in snapshot.resume(range(steps)):
            seen[step] = self.advance()
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            snapshot.step(step)
        return seen


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "momentum"])
@pytest.mark.parametrize("background", [False, True])
def test_an_interrupted_run_gives_the_losses_of_one_that_never_stopped(
    hostile_dir: Path, optimizer: str, background: bool
) -> None:
    whole = Training(optimizer=optimizer).run(hostile_dir / "a", 12)
    folder = hostile_dir / "b"
    parts: dict[int, str] = {}
    with pytest.raises(ResumeLater) as left:
        Training(optimizer=optimizer).run(folder, 12, stop_at=4, background=background)
    assert (left.value.code, left.value.step, left.value.reason) == (RESUME_ME, 4, "SIGTERM")
    parts |= Training(optimizer=optimizer).run(folder, 12, background=background)
    assert list(parts) == list(range(5, 12))
    assert parts == {step: whole[step] for step in parts}


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    assert len(Training().run(tmp_path, 5)) == 5
    assert Training().run(tmp_path, 5) == {}
    assert list(Training().run(tmp_path, 6)) == [5]


def test_a_stop_at_the_very_last_step_is_no_reason_to_come_back(tmp_path: Path) -> None:
    Training().run(tmp_path, 5, stop_at=4)
    assert store.list_snapshots(tmp_path)[0].step == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_only_sets_a_flag_until_the_end_of_the_step(tmp_path: Path, number: int) -> None:
    training = Training()
    snapshot = Snapshot(tmp_path, model=training.model, optimizer=training.optimizer)
    with pytest.raises(ResumeLater):
        for step in snapshot.resume(range(5)):
            os.kill(os.getpid(), number)
            training.advance()
            assert store.list_snapshots(tmp_path) == ()
            snapshot.step(step)
    assert [f.step for f in store.list_snapshots(tmp_path)] == [0]
    assert read_holder(tmp_path) is None


def test_a_handler_of_the_user_still_runs(tmp_path: Path) -> None:
    called: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    try:
        with pytest.raises(ResumeLater):
            Training().run(tmp_path, 5, stop_at=2)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert called == [signal.SIGTERM]


def test_a_forked_worker_can_be_terminated_and_does_not_give_the_folder_away(tmp_path: Path) -> None:
    training = Training()
    snapshot = Snapshot(tmp_path, model=training.model, optimizer=training.optimizer)
    steps = snapshot.resume(range(3))
    next(steps)
    waits = os.fork()
    if waits == 0:
        time.sleep(60)
        os._exit(0)
    ends = os.fork()
    if ends == 0:
        steps.close()  # type: ignore[attr-defined]
        os._exit(0)
    os.kill(waits, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(waits, 0)[1]) == -signal.SIGTERM
    assert os.waitstatus_to_exitcode(os.waitpid(ends, 0)[1]) == 0
    holder = read_holder(tmp_path)
    assert holder is not None and holder.pid == os.getpid()
    steps.close()  # type: ignore[attr-defined]


def test_a_compiled_model_and_a_plain_one_share_snapshots(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(2, 2)
    list(Snapshot(tmp_path, model=plain).resume(range(1)))
    other = nn.Linear(2, 2)
    list(Snapshot(tmp_path, model=torch.compile(other)).resume(range(1)))
    assert torch.equal(plain.weight, other.weight)


def test_the_end_of_the_allocation_is_a_reason_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(codes.DEADLINE, str(time.time() + 1.0))
    training = Training()
    snapshot = Snapshot(tmp_path, model=training.model, optimizer=training.optimizer)
    with pytest.raises(ResumeLater) as left:
        for step in snapshot.resume(range(10_000)):
            training.advance()
            time.sleep(0.01)
            snapshot.step(step)
    assert left.value.reason == "the allocation ends"
    assert store.list_snapshots(tmp_path)[0].step == left.value.step


def test_a_deadline_that_is_no_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(codes.DEADLINE, "soon")
    with pytest.raises(UsageError, match=f"{codes.DEADLINE}='soon'"):
        Training().run(tmp_path, 3)
    assert read_holder(tmp_path) is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    Training().run(tmp_path, 20, keep=2)
    assert names(tmp_path) == ["step-000000017", "step-000000019"]


def test_saves_come_by_time(tmp_path: Path) -> None:
    training = Training()
    snapshot = Snapshot(tmp_path, model=training.model, optimizer=training.optimizer, every_s=0.2, keep=100)
    for step in snapshot.resume(range(60)):
        training.advance()
        time.sleep(0.02)
        snapshot.step(step)
    saved = [found.step for found in store.list_snapshots(tmp_path)]
    assert 1 < len(saved) < 60 and saved[0] == 59  # how many exactly is a matter of the machine


def test_loader_scheduler_and_steps_not_from_zero_are_restored(tmp_path: Path) -> None:
    class Position:
        at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    def go(stop_at: int) -> tuple[list[int], Position, Any]:
        training, position = Training(), Position()
        scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 2, 0.5)
        snapshot = Snapshot(
            tmp_path, model=training.model, optimizer=training.optimizer, loader=position, also={"lr": scheduler}
        )
        done = []
        for step in snapshot.resume(range(10, 30, 5)):
            training.advance()
            scheduler.step()
            position.at += 7
            done.append(step)
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            snapshot.step(step)
        return done, position, scheduler

    with pytest.raises(ResumeLater):
        go(stop_at=15)
    done, position, scheduler = go(stop_at=-1)
    assert done == [20, 25] and position.at == 28 and scheduler.last_epoch == 4
    assert scheduler.get_last_lr() == [1e-2 / 4]


def test_an_unused_parameter_has_no_optimizer_state_after_resuming_either(tmp_path: Path) -> None:
    def go(steps: int) -> torch.optim.Optimizer:
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
        optimizer = torch.optim.AdamW(model.parameters())
        snapshot = Snapshot(tmp_path, model=model, optimizer=optimizer)
        for step in snapshot.resume(range(steps)):
            optimizer.zero_grad()
            model["used"](torch.ones(1, 2)).sum().backward()
            optimizer.step()
            snapshot.step(step)
        return optimizer

    assert len(go(2).state) == 2
    optimizer = go(2)
    assert len(optimizer.state) == 2
    assert {float(s["step"]) for s in optimizer.state.values()} == {2.0}


def test_breaking_out_of_the_loop_gives_the_folder_back(tmp_path: Path) -> None:
    training = Training()
    snapshot = Snapshot(tmp_path, model=training.model, optimizer=training.optimizer)
    steps = snapshot.resume(range(5))
    assert next(steps) == 0
    assert read_holder(tmp_path) is not None
    steps.close()  # type: ignore[attr-defined]
    assert read_holder(tmp_path) is None


def test_a_heartbeat_is_written_where_the_launcher_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(codes.HEARTBEAT, str(tmp_path / "beat"))
    Training().run(tmp_path / "ckpt", 3)
    step, when = (tmp_path / "beat").read_text().split()
    assert int(step) == 2 and abs(float(when) - time.time()) < 60, "the last sign of life is the last step"


# Damage


def damage(snapshot: Path) -> None:
    shard = next(snapshot.glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)


def test_a_damaged_newest_snapshot_is_passed_over_aloud(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = Training().run(tmp_path / "a", 12)
    with pytest.raises(ResumeLater):
        Training().run(tmp_path / "b", 12, stop_at=7)
    damage(tmp_path / "b" / "step-000000007")
    capfd.readouterr()
    parts = Training().run(tmp_path / "b", 12)
    said = capfd.readouterr().err
    assert list(parts) == list(range(6, 12)) and parts == {step: whole[step] for step in parts}
    assert "step-000000007 is damaged and not used" in said and "does not match its checksum" in said
    assert "resuming after step 5" in said
    assert any(name.startswith("bad-000000007") for name in names(tmp_path / "b"))


def test_when_every_snapshot_is_damaged_the_run_does_not_start_over_silently(tmp_path: Path) -> None:
    Training().run(tmp_path, 7)
    before = names(tmp_path)
    for found in store.list_snapshots(tmp_path):
        damage(found.path)
    with pytest.raises(MachineError, match="none of the 3 snapshots"):
        Training().run(tmp_path, 12)
    assert names(tmp_path) == before


def test_a_torn_save_is_never_seen_and_is_swept(tmp_path: Path) -> None:
    Training().run(tmp_path, 4)
    torn = store.saving_path(tmp_path, 8, "ab12")
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"half")
    assert list(Training().run(tmp_path, 6)) == [4, 5]
    assert not torn.exists()


# Bad input: clear errors, nothing overwritten


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"every_s": 0}, "every_s is 0"),
        ({"every_s": -1.0}, "every_s is -1"),
        ({"every_steps": 0}, "every_steps is 0"),
        ({"keep": 0}, "keep is 0"),
        ({"loader": object()}, "loader has no state_dict"),
        ({"also": {"scaler": 3}}, "scaler has no state_dict"),
        ({"wait_s": 0}, "wait_s is 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_happens(
    tmp_path: Path, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(UsageError, match=word):
        Snapshot(tmp_path / "ckpt", model=nn.Linear(1, 1), **options)
    assert names(tmp_path) == []


@pytest.mark.parametrize("steps", [range(5, 0, -1), [1, 2], "5"])
def test_steps_must_be_a_rising_range(tmp_path: Path, steps: Any) -> None:
    with pytest.raises(UsageError, match="rising range"):
        Snapshot(tmp_path, model=nn.Linear(1, 1)).resume(steps)


def test_step_without_resume_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="resume"):
        Snapshot(tmp_path, model=nn.Linear(1, 1)).step(0)


def test_a_folder_of_another_model_is_refused_by_name_and_shape(tmp_path: Path) -> None:
    Training(width=8).run(tmp_path, 4)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    other = Training(width=9)
    weights = [p.clone() for p in other.model.parameters()]
    with pytest.raises(UsageError, match=r"0\.weight is 8x4 there and 9x4 here") as caught:
        other.run(tmp_path, 8)
    assert "nothing was loaded or overwritten" in (caught.value.hint or "")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
    assert all(torch.equal(a, b) for a, b in zip(weights, other.model.parameters(), strict=True))


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    Training(optimizer="momentum").run(tmp_path, 4)
    with pytest.raises(UsageError, match=r"only in the snapshot: .*momentum_buffer"):
        Training(optimizer="adamw").run(tmp_path, 8)


def test_missing_and_extra_layers_are_both_named(tmp_path: Path) -> None:
    def go(model: nn.Module) -> None:
        list(Snapshot(tmp_path, model=model).resume(range(2)))

    go(nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}))
    with pytest.raises(UsageError, match=r"only in the snapshot: b\.bias, b\.weight; only in this run: c\.bias"):
        go(nn.ModuleDict({"a": nn.Linear(1, 1), "c": nn.Linear(1, 1)}))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    Training().run(tmp_path, 4)
    manifest = tmp_path / "step-000000003" / store.MANIFEST
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    before = names(tmp_path)
    with pytest.raises(VersionError, match="newer windlass"):
        Training().run(tmp_path, 8)
    assert names(tmp_path) == before


def test_a_folder_in_use_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    hold = take(tmp_path)
    try:
        with pytest.raises(HeldError, match=f"process {os.getpid()} of"):
            Training().run(tmp_path, 3)
    finally:
        hold.release()


def test_several_ranks_without_a_process_group_are_told_to_call_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError) as caught:
        Training().run(tmp_path, 3)
    assert "windlass.init()" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user of a child process")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    Training().run(folder, 4)
    folder.chmod(0o555)
    code = (
        "import os, sys, torch, torch.distributed.checkpoint.state_dict, windlass\n"
        "from windlass.runtime import Snapshot\n"
        "os.seteuid(65534)\n"
        "Snapshot(sys.argv[1], model=torch.nn.Linear(1, 1)).resume(range(3))\n"
    )
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and str(parent) != "/":
            parent.chmod(parent.stat().st_mode | 0o011)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=90, env=environ
    )
    assert f"MachineError: cannot write snapshots in {folder}: Permission denied" in done.stderr


def test_a_snapshot_works_outside_the_main_thread_where_no_handler_is_allowed(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def go() -> None:
        try:
            Training().run(tmp_path, 4)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join(60)
    assert failures == [] and store.list_snapshots(tmp_path)[0].step == 3
