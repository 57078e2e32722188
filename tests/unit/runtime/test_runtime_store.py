"""The folder on disk: commit, check, prune, sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.errors import VersionError
from windlass.runtime import store
from windlass.runtime.store import CorruptError, FileEntry, Manifest


def save(folder: Path, step: int, content: bytes = b"weights") -> Path:
    saving = store.saving_path(folder, step, store.new_token())
    saving.mkdir(parents=True)
    (saving / "part").write_bytes(content)
    entry = FileEntry(name="part", size_bytes=len(content), sha256=store.file_digest(saving / "part"))
    return store.commit(folder, saving, Manifest(step=step, world_size=1, saved_at=0.0, files=(entry,)))


def steps(folder: Path) -> list[int]:
    return [found.step for found in store.list_snapshots(folder)]


def test_a_committed_snapshot_is_listed_and_whole(hostile_dir: Path) -> None:
    path = save(hostile_dir, 12)
    assert steps(hostile_dir) == [12]
    assert store.check_snapshot(path).step == 12


def test_a_folder_that_does_not_exist_has_no_snapshots(tmp_path: Path) -> None:
    assert store.list_snapshots(tmp_path / "none") == ()


def test_what_is_still_being_written_is_not_listed(tmp_path: Path) -> None:
    store.saving_path(tmp_path, 5, "ab").mkdir()
    assert steps(tmp_path) == []


def test_committing_the_same_step_again_replaces_it_and_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path, 5, b"old")
    path = save(tmp_path, 5, b"new")
    assert (path / "part").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000005"]


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda p: (p / "part").write_bytes(b"weighty"), "does not match its checksum"),
        (lambda p: (p / "part").write_bytes(b"weig"), "has 4 bytes, not 7"),
        (lambda p: (p / "part").unlink(), "is missing"),
        (lambda p: (p / store.MANIFEST).unlink(), "cannot be read"),
        (lambda p: (p / store.MANIFEST).write_text("{"), "cannot be read"),
        (lambda p: (p / store.MANIFEST).write_bytes(b"\xff\xfe"), "cannot be read"),
        (lambda p: _edit(p, "step", 99), "does not match its own digest"),
    ],
)
def test_damage_is_found_and_named(tmp_path: Path, damage: object, word: str) -> None:
    path = save(tmp_path, 7)
    damage(path)  # type: ignore[operator]
    with pytest.raises(CorruptError, match=word):
        store.check_snapshot(path)


def test_every_flipped_bit_of_a_snapshot_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    for name in ("part", store.MANIFEST):
        whole = (path / name).read_bytes()
        for at in range(len(whole)):
            (path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises((CorruptError, VersionError)):
                store.check_snapshot(path)
        (path / name).write_bytes(whole)
    store.check_snapshot(path)


def test_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = save(tmp_path, 7)
    _edit(path, "format", store.FORMAT + 1)
    with pytest.raises(VersionError, match=rf"format {store.FORMAT + 1}, this one reads {store.FORMAT}"):
        store.read_manifest(path)


def test_prune_keeps_the_newest_and_one_bad_one(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save(tmp_path, step)
    for found in store.list_snapshots(tmp_path)[:2]:
        store.set_aside(found)
    store.prune(tmp_path, keep=1)
    assert steps(tmp_path) == [2]
    assert len(list(tmp_path.glob("bad-*"))) == 1


def test_sweep_removes_only_what_is_ours_and_unfinished(tmp_path: Path) -> None:
    save(tmp_path, 1)
    store.saving_path(tmp_path, 2, "ab").mkdir()
    (tmp_path / ".going-000000001-cd").mkdir()
    (tmp_path / ".saving-notes").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    store.sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".saving-notes", "notes.txt", "step-000000001"]


def _edit(snapshot: Path, key: str, value: object) -> None:
    path = snapshot / store.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
