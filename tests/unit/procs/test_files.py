"""Locks as proof of life, and files that are replaced in one step."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.node.sys.atomic import copy_file, create_file, is_locked, open_append, replace_file, take_lock
from windlass.node.sys.folders import UntrustedError

HOLD = """
import sys
from windlass.node.sys.atomic import take_lock
take_lock(sys.argv[1])
print("held", flush=True)
input()
"""


def test_lock_is_held_as_long_as_its_process_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_locked(path) is None
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    try:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        assert is_locked(path) is True
        with pytest.raises(BlockingIOError):
            take_lock(path, 0.1)
    finally:
        holder.kill()
        holder.communicate(timeout=10)
    assert is_locked(path) is False
    lock = take_lock(path)
    assert is_locked(path) is True
    os.close(lock)


def test_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        take_lock(tmp_path / "link")
    assert is_locked(tmp_path / "link") is None


def test_file_is_replaced_as_a_whole_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"one", b"two, longer"):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_replacement_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        replace_file(tmp_path / "folder", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_link_at_the_name_of_a_file_is_replaced_or_refused_and_never_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("ours")
    path.symlink_to(victim)
    with pytest.raises(FileExistsError):
        create_file(path, b"x")
    with pytest.raises(UntrustedError, match="not a plain file"):
        open_append(path)
    with open_append(path, fresh=True) as file:
        file.write(b"log")
    assert victim.read_text() == "ours" and path.read_text() == "log" and not path.is_symlink()


@pytest.mark.parametrize("kind", ["pipe", "hard link"])
def test_a_log_is_appended_only_to_a_plain_file_with_one_name(kind: str, tmp_path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "log")
    else:
        (tmp_path / "other").touch()
        (tmp_path / "log").hardlink_to(tmp_path / "other")
    with pytest.raises(UntrustedError, match="log is not a plain file"):
        open_append(tmp_path / "log")


def test_files_are_written_through_our_own_links_to_folders(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "deep").mkdir(parents=True)
    (tmp_path / "inner").symlink_to("scratch/deep")
    (tmp_path / "outer").symlink_to(tmp_path / "inner")
    replace_file(tmp_path / "outer" / ".." / "x", b"1")
    assert (tmp_path / "scratch" / "x").read_bytes() == b"1"
    copy_file(tmp_path / "scratch" / "x", tmp_path / "outer" / "y", 0o640)
    assert (tmp_path / "scratch" / "deep" / "y").read_bytes() == b"1"
    (tmp_path / "circle").symlink_to("circle")
    for wrong in ("circle", "none", "scratch/x"):
        with pytest.raises(OSError, match=str(tmp_path / wrong)):
            replace_file(tmp_path / wrong / "file", b"")
