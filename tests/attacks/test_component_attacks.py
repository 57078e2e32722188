"""Attacks on the folders of a job file's components: windlass writes and runs only in those that it made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attacks.record import record
from attacks.stranger import UID, require_stranger
from unit.cli.typed import windlass
from windlass.model.jsontext import to_json
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.identity import Process
from windlass.run.folder import make_folder
from windlass.run.jit_caches import UncleanNodes, _read_unclean
from windlass.run.trust import NotTrustedError, component_folders, require_trust, seal_folder, trust_folder

JOB = '[components.one]\ncommand = ["true"]\n'


def _job(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)


def test_a_components_folder_that_was_there_before_the_run_is_not_used(tmp_path: Path) -> None:
    _job(tmp_path)
    other = tmp_path / "other"
    for number, place in enumerate(("components", "components/one")):
        job = tmp_path / f"job-{number}"
        (job / place).parent.mkdir(parents=True)
        (other / "one").mkdir(parents=True, exist_ok=True)
        (other / "plan.json").write_text("precious")
        (other / "one" / "plan.json").write_text("precious")
        (job / place).symlink_to(other)
        done = windlass("run", "-q", "--run-dir", str(job), "job.toml", cwd=tmp_path)
        assert done.code == 2 and "components" in done.text, done.text
        assert sorted(path.name for path in other.rglob("*")) == ["one", "plan.json", "plan.json"]
        assert {path.read_text() for path in other.rglob("plan.json")} == {"precious"}
    record("links at the place of components", expected="refused, nothing written", seen="refused, nothing written")


def test_a_components_folder_with_the_key_of_another_person_is_not_used(tmp_path: Path) -> None:
    _job(tmp_path)
    made = tmp_path / "job" / "components" / "one"
    made.mkdir(parents=True)
    seal_folder(made, tmp_path / "their-state")
    done = windlass("run", "-q", "--run-dir", "job", "job.toml", cwd=tmp_path)
    assert done.code == 2 and "components/one" in done.text, done.text
    assert [path.name for path in made.iterdir()] == ["signature.json"]


def test_other_users_cannot_enter_the_components_folder_whatever_the_umask(tmp_path: Path) -> None:
    _job(tmp_path)
    (tmp_path / "job").mkdir()
    before = os.umask(0o002)
    try:
        (tmp_path / "job").chmod(0o775)
        done = windlass("run", "-q", "--run-dir", "job", "job.toml", cwd=tmp_path)
    finally:
        os.umask(before)
    assert done.code == 0, done.text
    assert (tmp_path / "job" / "components").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "job" / "components" / "one" / "plan.json").exists()


def test_a_linked_component_is_neither_signed_nor_trusted(tmp_path: Path) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    job = make_folder(str(tmp_path / "job"), tmp_path, "x", state_dir=state).path
    other.mkdir()
    (job / "components").mkdir()
    (job / "components" / "one").symlink_to(other)
    assert component_folders(job) == []
    trust_folder(job, {}, state)
    assert not any(other.iterdir())
    with pytest.raises(NotTrustedError, match="components/one is a link"):
        require_trust(job, state)


def test_a_list_of_unclean_nodes_by_another_user_is_not_believed(tmp_path: Path) -> None:
    require_stranger()
    entry = UncleanNodes(
        run_dir="/r", cache_root="/tmp", hosts=("n1",), scheduler="slurm", job_id="1", process=Process("h", 1, "", "b")
    )
    file = tmp_path / ("0" * 16)
    replace_file(file, to_json(entry))
    assert _read_unclean(file) == entry
    os.chown(file, UID, UID)
    assert _read_unclean(file) is None
