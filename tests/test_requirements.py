"""The test tools themselves: a skip is visible, a promised part is a failure, a leak is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import leftovers
from requirements import require, required
from waiting import wait_until


def test_a_missing_part_is_a_skip_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WINDLASS_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="anchor is missing: left ashore"):
        require("anchor", False, "left ashore")


def test_a_promised_part_that_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_REQUIRE", "rope, anchor")
    with pytest.raises(pytest.fail.Exception, match="anchor is required"):
        require("anchor", False, "left ashore")


def test_a_part_that_is_there_lets_the_test_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_REQUIRE", "anchor")
    require("anchor", True, "")
    assert required() == {"anchor"}


def test_a_process_left_behind_is_found_and_removed(tmp_path: Path, mark: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        wait_until(lambda: leftovers.look(mark, tmp_path), timeout_s=30, what="its mark can be read")
        found = leftovers.look_until_clean(mark, tmp_path, patience_s=0.2)
        assert [pid for pid, _ in found.processes] == [child.pid]
        leftovers.remove(found)
        assert child.wait(timeout=30) == -9
        assert not leftovers.look(mark, tmp_path)
    finally:
        child.kill()
        child.wait(timeout=30)


def test_processes_of_another_test_are_not_ours(tmp_path: Path, mark: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, leftovers.MARK_VARIABLE: mark + "0"},
    ) as child:
        assert not leftovers.look(mark, tmp_path)
        child.communicate(b"\n", timeout=30)


def test_the_hostile_folder_is_one_folder(hostile_dir: Path) -> None:
    assert hostile_dir.is_dir()
    assert {"'", '"', " ", "$", "`"} <= set(hostile_dir.name)
