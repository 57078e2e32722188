"""`Snapshot` in one process: what a script sees when it is interrupted and goes on."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from requirements import require_torch
from windlass.errors import UsageError
from windlass.runtime import RESUME_ME, ResumeLater, Snapshot, codes, staging, store, writer
from windlass.runtime.lease import read_holder
from windlass.runtime.tensor_file import HEAD_BYTES, data_offset, frame

require_torch()
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402

from unit.runtime.noise import Training, names  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("clean_process")]


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
    os.kill(os.getpid(), number)  # asked again on its way out: it has saved, and leaves with its own code


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


def test_training_changes_nothing_in_a_save_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, may_write = Training(), threading.Event()
    write = writer.ShardWriter.write

    def write_late(self: writer.ShardWriter) -> None:
        may_write.wait(20)
        write(self)

    monkeypatch.setattr(writer.ShardWriter, "write", write_late)
    snapshot = Snapshot(tmp_path, model=training.model, optimizer=training.optimizer, every_steps=3, keep=9)
    for step in snapshot.resume(range(5)):
        training.advance()
        if step == 2:
            saved = {name: value.detach().clone() for name, value in training.model.named_parameters()}
        snapshot.step(step)
        if step == 3:
            may_write.set()
    assert [found.step for found in store.list_snapshots(tmp_path)] == [4, 2]
    weights = {f"model/{name}": torch.zeros_like(value) for name, value in saved.items()}
    dcp.load(weights, checkpoint_id=str(tmp_path / "step-000000002"), no_dist=True)
    assert all(torch.equal(weights[f"model/{name}"], value) for name, value in saved.items())


def test_without_memory_for_a_copy_training_waits_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(staging, "memory_left", lambda: 0)
    Training().run(tmp_path, 6, background=True)
    assert names(tmp_path)[-1] == "step-000000005"
    assert capfd.readouterr().err.count("no memory for a copy") == 1


def test_a_stager_copies_tensors_of_every_form() -> None:
    tensors = [
        torch.randn(3, 4),
        torch.randn(4, 6).t(),
        torch.tensor(2.5),
        torch.ones(7, dtype=torch.bool),
        torch.empty(0),
        torch.randn(3, 3).to_sparse(),
        torch.randn(8, 2).bfloat16()[:, 1],
    ]
    stager = staging.Stager(1)
    staged = stager.stage(tensors)
    assert staged is not None
    for number, (copy, tensor) in enumerate(zip(staged.tensors, tensors, strict=True)):
        staged.wait(number)
        assert copy.dtype == tensor.dtype and torch.equal(copy.to_dense(), tensor.to_dense())
        assert tensor.is_sparse or copy.untyped_storage().nbytes() == copy.numel() * copy.element_size()
    larger = stager.stage([torch.arange(1_000_000)])
    assert larger is not None and torch.equal(larger.tensors[0], torch.arange(1_000_000))


def test_a_framed_tensor_is_what_torch_loads(tmp_path: Path) -> None:
    tensors = [torch.randn(3, 4), torch.zeros(()), torch.ones(5, dtype=torch.bool), torch.randn(9).bfloat16()]
    for tensor in tensors:
        framed = frame(tensor)
        assert framed is not None
        packed = framed.head + bytes(framed.data) + framed.tail
        assert torch.equal(torch.load(io.BytesIO(packed), weights_only=True), tensor)
        assert data_offset(packed[:HEAD_BYTES], len(framed.data)) == len(framed.head)
        assert data_offset(packed[:HEAD_BYTES], len(framed.data) + 1) is None


def test_torch_loads_a_snapshot_without_windlass(tmp_path: Path) -> None:
    training = Training()
    training.run(tmp_path, 4)
    weights = {f"model/{name}": torch.zeros_like(value) for name, value in training.model.named_parameters()}
    dcp.load(weights, checkpoint_id=str(tmp_path / names(tmp_path)[-1]), no_dist=True)
    assert all(torch.equal(weights[f"model/{name}"], value) for name, value in training.model.named_parameters())


def test_a_rank_with_several_files_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_FILE_BYTES", 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    whole = Training().run(tmp_path / "a", 6)
    with pytest.raises(ResumeLater):
        Training().run(tmp_path / "b", 6, stop_at=3)
    assert len(list((tmp_path / "b").glob("step-*/*.distcp"))) >= 4
    rest = Training().run(tmp_path / "b", 6)
    assert rest == {step: loss for step, loss in whole.items() if step in rest}


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


@pytest.mark.parametrize("wait_for_save", [False, True])
def test_snapshots_slower_than_their_interval_are_told_of_once_or_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wait_for_save: bool
) -> None:
    """16 MB are not written between two steps that do nothing."""
    folder, steps = tmp_path / "ckpt", 6
    model = nn.Linear(2048, 2048)
    snapshot = Snapshot(folder, model=model, every_steps=1, keep=steps, wait_for_save=wait_for_save)
    for step in snapshot.resume(steps):
        snapshot.step(step)
    said = capsys.readouterr().err
    saved = len([entry for entry in folder.iterdir() if entry.is_dir()])
    if wait_for_save:
        assert saved == steps
    else:
        assert saved < steps
    assert said.count("still being written") == (0 if wait_for_save else 1), said
