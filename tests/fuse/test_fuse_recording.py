"""`windlass cache trace record`: a trace before the first run, and nothing else left behind."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from requirements import require_fuse
from waiting import wait_until
from windlass.cli.main import main
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.node.cache.trace import read_trace
from windlass.run.planning import plan_request
from windlass.run.sidecars.ahead import record_ahead
from windlass.run.sidecars.cache_service import cache_service
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


def packages_in(env: Path, **modules: str) -> None:
    """A folder of packages, older than a recording: a file that was changed just now is not packed."""
    for name, text in modules.items():
        (env / "lib" / name).mkdir()
        (env / "lib" / name / "__init__.py").write_text(text)


def plan_of(script: Path, env: Path) -> Plan:
    python = sys.executable
    request = Request(
        kind="script", command=(script.name,), cwd=str(script.parent), python=python, cache=(str(env),), nodes=1
    )
    return plan_request(request, os.environ, here=True).plan


def waited_for(path: Path, tmp_path: Path) -> Path:
    wait_until(path.exists, timeout_s=60, what="no trace", state=(path.parent / "ahead.log").read_text)
    wait_until(lambda: left(tmp_path) == [], timeout_s=30, what="left behind", state=lambda: str(left(tmp_path)))
    return path


def test_the_imports_of_a_submitted_script_are_recorded_without_running_it(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages_in(
        environment,
        lazy="a = 1",
        later="a = 1",
        needs_device="import later\nraise SystemExit(1)",
        other="a = 1",
        unused="a = 1",
    )
    monkeypatch.setenv("PYTHONPATH", str(environment / "lib"))
    script = tmp_path / "user" / "train.py"
    script.parent.mkdir()
    script.write_text("import local, needs_device, missing\nfrom lazy import *\nopen('ran', 'w')\n")
    script.with_name("local.py").write_text("import other\nopen('ran', 'w')\n")
    assert record_ahead(plan_of(script, environment), os.environ) == ""
    path = waited_for(trace_path(tmp_path / "traces", environment_identity([str(environment)])), tmp_path)
    touched = {Path(os.fsdecode(touch.path)).parent.name for touch in read_trace(str(path)).touches}
    assert {"lazy", "later", "needs_device", "other"} <= touched
    assert "unused" not in touched
    assert not list(tmp_path.rglob("ran"))
    assert record_ahead(plan_of(script, environment), os.environ) == "there is a trace"


def test_a_trace_of_an_older_environment_is_pushed_until_there_is_a_new_one(environment: Path, tmp_path: Path) -> None:
    packages_in(environment, one="")
    argv = ["cache", "trace", "record", "--root", str(environment), "--", "program", "read"]
    assert main(argv) == 0
    older = trace_path(tmp_path / "traces", environment_identity([str(environment)]))
    packages_in(environment, two="")
    (environment / "pyvenv.cfg").write_text("version = 3.12\n")
    script = tmp_path / "train.py"
    script.write_text("import one\n")
    cache = plan_of(script, environment).cache
    assert cache is not None
    told = cache_service(cache, tmp_path / "traces").settings
    assert told["trace_in"] == str(older)
    assert told["trace_out"] != str(older)


def test_no_imports_are_recorded_where_the_site_forbids_it(environment: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import one\n")
    plan = plan_of(script, environment)
    assert plan.cache is not None
    cache = msgspec.structs.replace(plan.cache, ahead=False)
    assert "allows no imports" in record_ahead(msgspec.structs.replace(plan, cache=cache), os.environ)
    assert not (tmp_path / "traces").exists()
