"""Attacks on single files in folders that other users can write to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attacks.record import record
from attacks.stranger import as_stranger, common_place, require_stranger
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
        with pytest.raises(UntrustedError, match="not a plain file of ours"):
            open_append(place / "log")
        with open_append(place / "log", fresh=True) as file:
            file.write(b"x")
        assert not is_foreign(place / "log")
