"""`Snapshot` and folders it cannot use: damaged, of another model, held, newer, forbidden. They stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import require_torch
from windlass.errors import MachineError, UsageError, VersionError
from windlass.runtime import ResumeLater, Snapshot, store
from windlass.runtime.lease import HeldError, acquire
from windlass.runtime.reader import make_reader

require_torch()
import torch  # noqa: E402
from torch import nn  # noqa: E402

from unit.runtime.noise import Training, names  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("clean_process")]


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
    assert "step-000000007 is damaged and is not used" in said and "does not match its checksum" in said
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
    lease = acquire(tmp_path)
    try:
        with pytest.raises(HeldError, match=f"process {os.getpid()} of"):
            Training().run(tmp_path, 3)
    finally:
        lease.release()


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


def test_a_foreign_file_stays_foreign_while_other_threads_open_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark decides whether pickles are trusted. Here one file is judged while another one is being opened."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.touch()
    theirs.touch()
    reader = make_reader(tmp_path, (), lambda problems, fault: None)
    opened: list[Path] = []

    def judged(status: os.stat_result) -> bool:
        if status.st_ino == theirs.stat().st_ino:
            return False
        if not opened:
            opened.append(theirs)
            with reader.fs.create_stream(theirs, "rb"):
                pass
        return True

    monkeypatch.setattr("windlass.runtime.reader.is_own", judged)
    with reader.fs.create_stream(ours, "rb"):
        pass
    assert opened and not reader.files.all_own
