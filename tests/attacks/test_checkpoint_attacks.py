"""Attacks by checkpoints of trainers: a trainer executes code from them, so windlass passes no file of another user."""

from __future__ import annotations

import pickle
import resource
import zipfile
from pathlib import Path

from attacks.record import record
from attacks.stranger import as_stranger, common_place, require_stranger
from unit.supervise.test_trainers import HF, LIGHTNING, checkpoint, planned, trainer
from windlass.run.folder import RunFolder
from windlass.run.supervise.checkpoints import after_attempt, find_checkpoints


def test_checkpoints_of_another_user_are_neither_passed_nor_renamed() -> None:
    require_stranger()
    with common_place(0o777) as place:
        ours = checkpoint(place, 10)
        (place / "out").chmod(0o777)
        as_stranger(lambda: checkpoint(place, 900))
        as_stranger((place / "out" / "checkpoint-950").mkdir)
        linked, mixed = place / "out" / "checkpoint-960", checkpoint(place, 970)
        as_stranger(lambda: linked.symlink_to(ours))
        mixed.chmod(0o777)
        as_stranger(lambda: (mixed / "pytorch_model.bin").write_bytes(pickle.dumps(1)))
        plan = planned(place, HF, "--output_dir", "out", options=("resume",))
        found, incomplete = find_checkpoints(trainer(plan), place, 2, 0.0)
        assert found is not None and (found.path, incomplete) == (ours, ())
        folder = RunFolder(place / "run")
        folder.path.mkdir()
        before = sorted(path.name for path in (place / "out").iterdir())
        assert after_attempt(plan, folder, 0.0) == ()
        assert sorted(path.name for path in (place / "out").iterdir()) == before
    record("a stranger's checkpoints in a shared folder", expected="not used", seen="not used", checkpoints=4)


def test_a_checkpoint_with_a_huge_header_costs_no_memory(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, 10) / "model.safetensors"
    with model.open("wb") as file:
        file.write((1 << 62).to_bytes(8, "little"))
        file.truncate(1 << 42)
    made = planned(tmp_path, HF, "--output_dir", "out").trainer
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, limit[1]))
    try:
        found, incomplete = find_checkpoints(made, tmp_path, 2, 0.0)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert found is None and incomplete == (model.parent,)


def test_hostile_archives_of_torch_have_step_zero(tmp_path: Path) -> None:
    made = trainer(planned(tmp_path, LIGHTNING, "--trainer.default_root_dir=out"))
    path = tmp_path / "out" / "hpc_ckpt_1.ckpt"
    path.parent.mkdir()
    huge = pickle.dumps({"global_step": 1 << 20_000})
    bomb = b"\x80\x02" + b"K\x01" * (40 << 20)
    for number, text in enumerate((huge, bomb)):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/data.pkl", text)
        found, _ = find_checkpoints(made, tmp_path, 1, 0.0)
        assert found is not None and found.step == 0, number
    data = path.read_bytes().replace(b"PK\x03\x04\x14\x00\x00\x00", b"PK\x03\x04\x14\x00\x01\x00")
    path.write_bytes(data.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00"))
    found, _ = find_checkpoints(made, tmp_path, 1, 0.0)  # marked as encrypted
    assert found is not None and found.step == 0
