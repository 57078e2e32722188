"""Attacks on single files in folders that other users can write to."""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from attacks.record import record
from attacks.stranger import as_stranger, common_place, require_stranger
from unit.cli.typed import Ended, in_process, windlass
from windlass.build.envs.archive import write_archive
from windlass.node.agent import host
from windlass.node.sys.atomic import copy_file, create_file, open_append, replace_file
from windlass.node.sys.folders import UntrustedError, is_foreign

WRITERS: dict[str, Callable[[Path], object]] = {
    "replace": lambda path: replace_file(path, b"evil"),
    "create": lambda path: create_file(path, b"evil"),
    "append": lambda path: open_append(path).write(b"evil"),
    "copy": lambda path: copy_file("/etc/passwd", path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_file_is_written_through_a_folder_link_of_another_user(writer: str, tmp_path: Path) -> None:
    require_stranger()
    with common_place() as place:
        as_stranger(lambda: (place / "shared").symlink_to(tmp_path))
        with pytest.raises(UntrustedError, match="link of uid 65534"):
            WRITERS[writer](place / "shared" / "authorized_keys")
    assert not any(tmp_path.iterdir())
    record(f"{writer} through a linked folder of another user", expected="refused", seen="refused")


@pytest.mark.parametrize("writer", WRITERS)
def test_a_group_folder_of_a_colleague_takes_new_files_and_a_place_open_to_all_does_not(writer: str) -> None:
    require_stranger()
    with common_place() as place:
        as_stranger(lambda: (place / "group").mkdir(mode=0o775))
        WRITERS[writer](place / "group" / "file")
        assert not is_foreign(place / "group" / "file") and is_foreign(place / "group")
        as_stranger(lambda: (place / "open").mkdir(mode=0o777))
        with pytest.raises(UntrustedError, match="every user"):
            WRITERS[writer](place / "open" / "file")


def test_a_log_of_another_user_is_not_appended_to() -> None:
    require_stranger()
    with common_place(0o775) as place:
        (place / "log").touch()
        os.chown(place / "log", 65534, 65534)
        with pytest.raises(UntrustedError, match="not a plain file that you own"):
            open_append(place / "log")
        with open_append(place / "log", fresh=True) as file:
            file.write(b"x")
        assert not is_foreign(place / "log")


def test_a_variable_of_the_environment_does_not_let_an_agent_remove_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    monkeypatch.setenv("WINDLASS_AGENT_PYTHON", str(tmp_path / "thesis"))
    assert host.run_agent(b"", {"version": host.VERSION + 1}, b"") == 1
    assert (tmp_path / "thesis").exists() and "version" in capfd.readouterr().out
    record("WINDLASS_AGENT_PYTHON=DIR", expected="DIR is left alone", seen="DIR is left alone")


SWAP = """\
#!{python}
import os, sys
def python(path, line):
    open(path, "w").write("#!/bin/sh\\n" + line); os.chmod(path, 0o755)
os.makedirs(sys.argv[3] + "/bin")
python(sys.argv[3] + "/bin/python", "")
if os.fork() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
    partial = "{place}/.env.partial"
    os.rename(partial, "{place}/stolen")
    os.makedirs(partial + "/env/bin"); os.makedirs(partial + "/bin")
    for path in (partial + "/bin/python", partial + "/env/bin/python"):
        python(path, "touch {place}/ran")
    os._exit(0)
assert os.wait()[1] == 0
"""


@pytest.fixture
def group_place() -> Iterator[Path]:
    """A folder of a project, in which a colleague can write too."""
    require_stranger()
    with common_place(0o2775) as place:
        os.chown(place, 0, 65534)
        place.chmod(0o2775)
        yield place


def create_env(place: Path, python: str) -> Ended:
    return windlass("env", "create", str(place / "env"), "--torch", "none", "--python", python, cwd=place)


def test_an_environment_that_a_colleague_swaps_during_the_build_is_not_used(group_place: Path, tmp_path: Path) -> None:
    python = group_place / "python"
    python.write_text(SWAP.format(python=sys.executable, place=group_place))
    python.chmod(0o755)
    made = create_env(group_place, str(python))
    assert made.code == 3 and "another user replaced" in made.stderr, made.text
    assert not (group_place / "env").exists() and not (group_place / "ran").exists(), made.text
    record("swapping an environment during `env create`", expected="refused, not run", seen="refused, not run")


def test_a_work_folder_of_a_colleague_is_neither_removed_nor_used(group_place: Path) -> None:
    as_stranger(lambda: (group_place / ".env.partial").mkdir(mode=0o777))
    made = create_env(group_place, sys.executable)
    assert made.code == 2 and "belongs to uid 65534" in made.stderr, made.text
    assert (group_place / ".env.partial").exists() and not (group_place / "env").exists()


def test_an_archive_is_not_written_through_a_link_that_waits_for_it(group_place: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ours")
    for pid in range(os.getpid(), os.getpid() + 400):  # the name of earlier versions
        (group_place / f".env.tar.{pid % 4194304}").symlink_to(tmp_path / "keys")
    write_archive([], group_place / "env.tar", {})
    assert (tmp_path / "keys").read_text() == "ours" and not (group_place / "env.tar").is_symlink()


WRITING = {
    "kept/caches.tar": ("run", "-q", "--keep-caches", "PLACE/kept", "--run-dir", "run", "--", "sh", "-c", "true"),
    "env.tar": ("env", "pack", "env", "--force", "-o", "PLACE/env.tar"),
    "page.html": ("report", "run", "--output", "PLACE/page.html"),
    "figures.prom": ("watch", "--once", "--prometheus", "PLACE/figures.prom", "run"),
    "image/Containerfile": ("image", "plan", "pytorch-rocm", "--output", "PLACE/image"),
}
"""By the file that they write. The first one makes the run that others read."""


def test_no_command_writes_through_links_that_a_colleague_laid(group_place: Path, tmp_path: Path) -> None:
    """At the file itself, and at the name that earlier versions gave to a partial file."""
    keys = tmp_path / "authorized_keys"
    keys.write_text("ours")
    venv.create(tmp_path / "env", with_pip=False)

    def trap(file: Path, first: int) -> None:
        file.symlink_to(keys)
        for pid in range(first, first + 200):
            (file.parent / f".{file.name}.{pid}").symlink_to(keys)

    for name, words in WRITING.items():
        file = group_place / name
        file.parent.mkdir(exist_ok=True)
        os.chown(file.parent, 0, 65534)
        file.parent.chmod(0o2775)
        as_stranger(partial(trap, file, os.getpid()))
        start = windlass if words[0] == "run" else in_process
        done = start(*(word.replace("PLACE", str(group_place)) for word in words), cwd=tmp_path)
        assert done.code == 0, done.text
        assert keys.read_text() == "ours", name
        assert file.is_file() and not file.is_symlink() and not is_foreign(file), name
    record("links where commands write", expected="replaced", seen="replaced", commands=len(WRITING), links=1005)
