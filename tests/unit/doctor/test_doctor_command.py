"""`windlass doctor` as a person types it, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unit.cli.typed import argv, environment, windlass
from waiting import wait_until

QUICK = ("doctor", "--quick", "--scheduler", "none", "--python", sys.executable)


def test_this_machine_is_examined_and_nothing_is_left(tmp_path: Path) -> None:
    done = windlass(*QUICK, "-r", "2", "--json", cwd=tmp_path)
    health = json.loads(done.stdout)
    status = {check["kind"]: check["severity"] for check in health["findings"]}
    assert (health["version"], health["nodes"], health["level"]) == (2, 1, "quick")
    for name in ("ranks", "affinity", "python", "port", "launcher-nesting"):
        assert status[name] == "ok", done.text
    assert list(tmp_path.iterdir()) == []


def test_a_command_line_is_checked_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    done = windlass(*QUICK, "-r", "1", "train.py", "--num-workers", "999", cwd=tmp_path)
    assert "warning  loader-workers: 999 workers and the rank itself on" in done.stdout, done.text
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    nested = windlass(*QUICK, "-r", "2", "--", "torchrun", "train.py", cwd=tmp_path)
    assert nested.code == 1 and "error    launcher-nesting: the command starts torchrun" in nested.stdout


def test_the_cache_of_the_interpreter_in_use_is_planned_as_run_does(tmp_path: Path) -> None:
    done = windlass(*QUICK, "-r", "1", "--cache", "auto", cwd=tmp_path)
    assert "all 1 started as planned" in done.stdout, done.text


def test_on_a_login_node_no_rank_starts_and_no_device_is_missed(tmp_path: Path) -> None:
    done = windlass("doctor", "--quick", "--site", "frontier", "--json", cwd=tmp_path)
    health = json.loads(done.stdout)
    status = {check["kind"]: check["severity"] for check in health["findings"]}
    assert health["outside"] is True
    assert status["ranks"] == "skipped" and status["devices"] != "error" and "port" not in status


def test_a_kept_folder_holds_what_the_ranks_said(tmp_path: Path) -> None:
    done = windlass(*QUICK, "-r", "1", "--run-dir", "kept", cwd=tmp_path)
    assert "all 1 started as planned" in done.stdout, done.text
    explained = windlass("explain-log", "kept/ranks", cwd=tmp_path)
    assert explained.code == 0 and "no problem found in this output" in explained.stdout


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_doctor_that_is_stopped_leaves_nothing(tmp_path: Path, sig: signal.Signals) -> None:
    """The interpreter of the ranks hangs: somebody loses patience."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec sleep 300\n")
    python.chmod(0o755)
    words = argv("doctor", "--quick", "--scheduler", "none", "-r", "1", "--python", str(python))
    with subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as doctor:
        wait_until((tmp_path / "started").exists, timeout_s=60, what="the rank has started")
        os.kill(doctor.pid, sig)
        _, said = doctor.communicate(timeout=60)
    assert doctor.returncode == 128 + sig, said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["python", "started"]
