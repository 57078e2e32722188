"""Job files on one machine: order, readiness, failures, restarts, resume. The components are real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planning import plan_for
from unit.cli.typed import environment
from waiting import wait_until
from windlass.model.request import Ready
from windlass.run.supervise.ready import ReadyTest

SERVICE = 'command = ["sh", "-c", "echo up; exec sleep 600"]\nend = "service"\n'


def _start(folder: Path, job: str, *words: str, **more: str) -> subprocess.Popen[str]:
    (folder / "job.toml").write_text(job)
    argv = [sys.executable, "-m", "windlass", *(words or ("run", "job.toml"))]
    pipe = subprocess.PIPE
    env = environment(folder, **more)
    return subprocess.Popen(argv, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True, stdin=subprocess.DEVNULL)


def _run(folder: Path, job: str, *words: str, **more: str) -> tuple[int, str]:
    out, err = (started := _start(folder, job, *words, **more)).communicate(timeout=60)
    return started.returncode, out + err


def _folder(folder: Path) -> Path:
    (path,) = (folder / "runs").iterdir()
    return path


def _states(run: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads((run / "components.json").read_text())}


def _pid(run: Path, name: str) -> int:
    (where,) = (run / "components" / name / "where").iterdir()
    return int(where.read_text().split()[-1])


def test_a_component_starts_when_the_ones_that_it_needs_are_ready(tmp_path: Path) -> None:
    job = """
[components.second]
command = ["sh", "-c", "cat made; echo port {first.port} of {first.addr}, {first.hosts}"]
needs = ["first"]
[components.first]
command = ["sh", "-c", "sleep 0.5; echo content > made; echo step 1; exec sleep 600"]
ready = { log = "step 1" }
end = "service"
"""
    code, text = _run(tmp_path, job)
    assert code == 0, text
    assert "[second 0] content" in text
    states = _states(_folder(tmp_path))
    assert f"[second 0] port {states['first']['port']} of 127.0.0.1, 127.0.0.1" in text
    assert states["first"]["state"] == "stopped"
    assert states["first"]["ready"] <= states["second"]["started"]


@pytest.mark.slow
def test_a_producer_that_has_finished_lets_the_trainer_start(tmp_path: Path) -> None:
    job = """
[components.trainer]
command = ["cat", "data"]
needs = ["producer"]
[components.producer]
command = ["sh", "-c", "sleep 0.3; echo rows > data"]
ready = { finished = true }
"""
    code, text = _run(tmp_path, job)
    assert code == 0, text
    assert "[trainer 0] rows" in text


@pytest.mark.slow
def test_a_component_that_is_not_ready_in_time_fails_the_job(tmp_path: Path) -> None:
    job = f"""
[components.server]
{SERVICE}
ready = {{ port = true, within_s = 0.5 }}
[components.client]
command = ["true"]
needs = ["server"]
"""
    code, text = _run(tmp_path, job)
    assert code == 1, text
    assert "server failed: was not ready within 0.5 s: nothing accepts connections at 127.0.0.1:" in text
    assert _states(_folder(tmp_path))["client"]["state"] == "waiting"


def test_a_failure_is_attributed_to_the_component_that_died_first(tmp_path: Path) -> None:
    job = """
[components.server]
command = ["sh", "-c", "sleep 0.6; exit 7"]
end = "service"
[components.trainer]
command = ["sh", "-c", "sleep 0.3; exit 9"]
needs = ["server"]
"""
    code, text = _run(tmp_path, job)
    assert code == 7, text
    assert "trainer failed because server failed first: rank 0 on" in text
    record = json.loads((_folder(tmp_path) / "result.json").read_text())
    assert record["failure"]["said"].startswith("server failed: rank 0 on")
    assert json.loads((_folder(tmp_path) / "components/trainer/result.json").read_text())["exit_code"] == 9
    code, text = _run(tmp_path, job, "report")
    assert ": 1 node, 2 components; failed" in text.splitlines()[0], text


@pytest.mark.slow
def test_one_component_restarts_alone(tmp_path: Path) -> None:
    job = """
[components.server]
command = ["sh", "-c", "echo start; [ -e second ] && exec sleep 600; touch second; exit 3"]
restarts = 1
end = "service"
[components.client]
command = ["sh", "-c", "while [ ! -e second ]; do sleep 0.1; done; sleep 1; echo served"]
"""
    code, text = _run(tmp_path, job)
    assert code == 0, text
    assert text.count("[server 0] start") == 2
    assert text.count("[client 0] served") == 1


def test_ctrl_c_ends_the_components_in_reverse_order_of_need(tmp_path: Path) -> None:
    trap = (
        'command = ["sh", "-c", "trap \'echo NAME >> ended; exit 0\' TERM INT; echo up; while :; do sleep 0.1; done"]\n'
    )
    job = f"""
[components.base]
{trap.replace("NAME", "base")}
[components.middle]
{trap.replace("NAME", "middle")}
needs = ["base"]
[components.top]
{trap.replace("NAME", "top")}
needs = ["middle"]
"""
    started = _start(tmp_path, job)
    wait_until(lambda: "top" in _running(tmp_path), timeout_s=20, what="all run")
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=30)
    assert started.returncode == 128 + signal.SIGINT, err
    assert (tmp_path / "ended").read_text().split() == ["top", "middle", "base"]
    assert json.loads((_folder(tmp_path) / "result.json").read_text())["outcome"] == "stopped"


def _running(folder: Path) -> list[str]:
    try:
        out = [path.name for path in (_folder(folder) / "components").iterdir() if "up" in _output(path)]
    except (OSError, ValueError):
        return []
    return out


def _output(run: Path) -> str:
    return "".join(path.read_text() for path in (run / "out").iterdir())


def test_resume_after_kill_9_starts_what_had_not_finished(tmp_path: Path) -> None:
    job = f"""
[components.server]
{SERVICE}
ready = {{ log = "up" }}
[components.prepare]
command = ["sh", "-c", "echo prepared >> log"]
[components.trainer]
command = ["sh", "-c", "echo trained >> log; [ -e go ] || {{ touch go; exec sleep 600; }}"]
needs = ["server", "prepare"]
"""
    job = job.replace('echo prepared >> log"]', 'echo prepared >> log"]\nready = { finished = true }')
    started = _start(tmp_path, job)
    wait_until((tmp_path / "go").exists, timeout_s=20, what="the trainer runs")
    run = _folder(tmp_path)
    pids = [_pid(run, name) for name in ("server", "trainer")]
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=20)
    for pid in pids:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), timeout_s=20, what="no rank survives")
    code, text = _run(tmp_path, job, "runs", "list")
    assert text.startswith("killed"), text
    code, text = _run(tmp_path, job, "runs", "show")
    assert "component server: stopped" in text and "component trainer: stopped" in text, text
    code, text = _run(tmp_path, job, "watch")
    assert "1 node  3 components  ended" in text.splitlines()[0], text
    code, text = _run(tmp_path, job, "runs", "resume", str(run))
    assert code == 0, text
    assert (tmp_path / "log").read_text().split() == ["prepared", "trained", "trained"]
    assert _states(run)["prepare"]["why"] == "finished in an earlier start"


@pytest.mark.slow
def test_a_killed_component_process_fails_the_job_and_leaves_no_rank(tmp_path: Path) -> None:
    job = f"""
[components.server]
{SERVICE}
[components.trainer]
command = ["sleep", "600"]
needs = ["server"]
"""
    started = _start(tmp_path, job)
    wait_until(lambda: "server" in _running(tmp_path), timeout_s=20, what="the server runs")
    run = _folder(tmp_path)
    rank = _pid(run, "server")
    os.kill(json.loads((run / "components/server/owner.json").read_text())["pid"], signal.SIGKILL)
    _, err = started.communicate(timeout=30)
    assert started.returncode == 1, err
    assert "server failed: its windlass process ended with code -9" in err
    wait_until(lambda: not Path(f"/proc/{rank}").exists(), timeout_s=20, what="the rank of the server ended")


def test_a_log_line_after_a_megabyte_without_a_line_end_is_found(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(b"\r50 %" * 300_000 + b"\nserving\n")
    plan = plan_for("workstation", "true")[0]
    test = ReadyTest(ready=Ready(log="serving"), plan=plan, out=tmp_path, address="", port=0, offsets={})
    assert any(test.passes() for _ in range(5))
