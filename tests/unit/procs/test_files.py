"""Locks as proof of life, and files that are replaced in one step."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.node.sys.atomic import replace_file
from windlass.node.sys.locks import is_locked, take_lock

HOLD = """
import sys
from windlass.node.sys.locks import take_lock
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
