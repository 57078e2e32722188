"""The run folder: made once, closed to others, found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning import plan_for
from windlass.errors import MachineError, UsageError
from windlass.plan.inputs import Secrets
from windlass.run.folder import is_run, make_folder, open_folder, read_plan, restart


def test_folders_of_one_second_get_names_of_their_own(tmp_path: Path) -> None:
    made = [make_folder(None, tmp_path, "train", now=0).path.name for _ in range(3)]
    assert made[1:] == [f"{made[0]}-2", f"{made[0]}-3"]
    assert made[0].startswith("train-19")


def test_a_named_folder_may_exist_but_not_hold_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("keep")
    folder = make_folder(str(tmp_path / "mine"), tmp_path, "train")
    folder.claim()
    assert (tmp_path / "mine/notes").read_text() == "keep"
    with pytest.raises(UsageError, match="already contains a run"):
        make_folder(str(tmp_path / "mine"), tmp_path, "train")
    with pytest.raises(UsageError, match="already contains a run"):
        folder.claim()


def test_files_have_their_mode_from_the_start_and_appear_whole(tmp_path: Path) -> None:
    folder = make_folder(None, tmp_path, "train")
    path = folder.write("rank.sh", "#!/bin/sh\n# \udcff\n", mode=0o700)
    assert path.stat().st_mode & 0o777 == 0o700
    assert path.read_bytes() == b"#!/bin/sh\n# \xff\n"
    assert not [entry for entry in folder.path.iterdir() if entry.name.startswith(".")]


def test_a_plan_is_saved_with_its_secrets_beside_it_and_read_back(tmp_path: Path) -> None:
    folder = make_folder(None, tmp_path, "train")
    plan, secrets = plan_for("lumi", "train", "--token", "correct-horse", env=(("A_KEY", "battery-staple"),))
    folder.save_plan(plan, secrets)
    assert read_plan(folder.path) == plan == read_plan(folder.path / "plan.json")
    text = (folder.path / "secrets.sh").read_text()
    assert "correct-horse" in text and "battery-staple" in text
    assert folder.has_secrets()
    folder.forget_secrets()
    folder.forget_secrets()
    assert not folder.has_secrets()


def test_a_run_is_known_by_its_plan_and_its_folders(tmp_path: Path) -> None:
    folder = make_folder(None, tmp_path, "train")
    assert not is_run(folder.path)
    folder.save_plan(plan_for("lumi")[0], Secrets())
    assert is_run(folder.path) and is_run(folder.path / "plan.json")
    assert open_folder(folder.path / "plan.json") == open_folder(folder.path) == folder
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/plan.json").write_bytes((folder.path / "plan.json").read_bytes())
    assert not is_run(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="not a run folder"):
        open_folder(tmp_path / "elsewhere")


def test_names_of_runs_differ_for_things_outside(tmp_path: Path) -> None:
    ids = {make_folder(None, tmp_path, "train", now=0).run_id for _ in range(5)}
    assert len(ids) == 5
    assert all(char in "0123456789abcdef-" for char in "".join(ids))


def test_another_start_moves_what_the_last_one_left(tmp_path: Path) -> None:
    folder = make_folder(None, tmp_path, "train")
    folder.save_plan(plan_for("lumi")[0], Secrets())
    restart(folder)
    assert not folder.part("attempt-1").exists()  # nothing ran yet
    for number in (1, 2):
        folder.part("out/node-0000.log").write_text(f"0: {number}\n")
        folder.write("result.json", "{}")
        restart(folder)
        assert folder.part(f"attempt-{number}/out/node-0000.log").read_text() == f"0: {number}\n"
        assert list(folder.part("out").iterdir()) == []
        assert not folder.part("result.json").exists()
    assert folder.part("plan.json").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wanted in ("file", "file/x"):
        with pytest.raises(MachineError, match="cannot make the run folder"):
            make_folder(str(tmp_path / wanted), tmp_path, "train")
    folder = make_folder(None, tmp_path, "train")
    with pytest.raises(MachineError, match="cannot write"):
        folder.write("no/such/part", "x")
