"""`windlass cache trace record`: a trace before the first run, and nothing else left behind."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from requirements import require_fuse
from windlass.cli.main import main
from windlass.node.cache.trace import read_trace
from windlass.run.sidecars.traces import environment_identity, list_traces, trace_path

pytestmark = pytest.mark.fuse


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    require_fuse()
    monkeypatch.setenv("WINDLASS_TRACES", str(tmp_path / "traces"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    env = tmp_path / "env"
    (env / "bin").mkdir(parents=True)
    (env / "lib").mkdir()
    (env / "lib" / "read").write_bytes(b"x" * 5000)
    (env / "lib" / "not-read").write_bytes(b"y" * 5000)
    program = env / "bin" / "program"
    program.write_text('#!/bin/sh\nexec cat "$(dirname "$0")/../lib/$1"\n')
    program.chmod(0o755)
    return env


def left(tmp_path: Path) -> list[str]:
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line]
    return [*(path.name for path in (tmp_path / "tmp").iterdir()), *mounts]


def test_a_command_is_recorded_and_later_runs_find_its_trace(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["cache", "trace", "record", "--root", str(environment), "--json", "--", "program", "read"]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    path = trace_path(tmp_path / "traces", environment_identity([str(environment)]))
    assert told["identity"] == path.name.split(".")[0]
    touched = {os.fsdecode(touch.path): touch.length for touch in read_trace(str(path)).touches}
    assert touched[str(environment / "lib" / "read")] == 5000
    assert str(environment / "lib" / "not-read") not in touched
    assert str(environment / "bin" / "program") in touched
    assert left(tmp_path) == []


def test_a_command_that_fails_leaves_the_older_trace_alone(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["cache", "trace", "record", "--root", str(environment), "--", "program"]
    assert main([*argv, "read"]) == 0
    before = list_traces(tmp_path / "traces")
    for words in ([*argv, "missing"], [*argv[:-1], "no-such-program"], [*argv[:-1], "/bin/true"]):
        assert main(words) != 0
    assert list_traces(tmp_path / "traces") == before
    assert "no such program" in capsys.readouterr().err
    assert left(tmp_path) == []


def test_a_record_without_folder_or_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--root", "/usr"], ["--", "true"], ["--root", "/usr", "--timeout", "0", "--", "true"]):
        assert main(["cache", "trace", "record", *words]) == 2
        assert "hint" in capsys.readouterr().err
