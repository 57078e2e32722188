"""`windlass watch` and `exec` on this machine: ranks of all kinds, runs that were not sampled, damaged files."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from cluster.command import only_run, windlass_argv, windlass_env
from looping import each
from waiting import wait_until
from windlass.diagnose.watch.job import read_job

pytestmark = pytest.mark.timeout(120)
_STEPS = "import time, windlass\nfor _ in range(30):\n    time.sleep(0.01)\n    windlass.step(data_wait_s=0.001)\n"


def _windlass(folder: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **windlass_env(folder), "NO_COLOR": "1"}
    return subprocess.run(
        windlass_argv(command, *words), env=environ, cwd=folder, capture_output=True, text=True, timeout=90
    )


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return _windlass(folder, "run", "--scheduler", "none", "--site", "workstation", *words)


def test_programs_with_the_hook_without_it_and_no_python_at_all_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(_STEPS)
    each = 'case $RANK in 0) exec "$0" steps.py ;; 1) exec "$0" -I -c pass ;; *) exec sleep 0.1 ;; esac'
    done = _run(tmp_path, "--watch", "-r", "3", "--cpu-bind", "none", "--", "sh", "-c", each, sys.executable)
    assert done.returncode == 0, done.stderr
    job = read_job(only_run(tmp_path).path)
    assert job is not None
    assert job.ended
    assert [(rank.activity, rank.steps) for rank in job.ranks] == [("ended", 30), ("ended", 0), ("ended", 0)]
    assert job.ranks[0].all_ms is not None
    assert job.ranks[0].all_ms >= 10
    assert job.ranks[0].all_wait_share
    shown = _windlass(tmp_path, "watch", "--once", "--prometheus", "job.prom")
    assert shown.returncode == 0, shown.stderr
    assert "3 ranks" in shown.stdout
    assert "\x1b" not in shown.stdout
    exported = (tmp_path / "job.prom").read_text()
    assert re.search(r'windlass_rank_steps_total\{job="\w+",rank="0",node="[^"]+"\} 30\n', exported)
    assert "steps.py" not in exported


def test_a_run_that_was_not_sampled_or_is_damaged_gives_what_there_is_with_a_note(tmp_path: Path) -> None:
    assert _run(tmp_path, "-r", "1", "--", "true").returncode == 0
    shown = _windlass(tmp_path, "watch", "--once")
    assert shown.returncode == 0, shown.stderr
    assert "the run is done" in shown.stdout
    assert "started without --watch" in shown.stdout
    run = only_run(tmp_path).path
    (run / "watch").mkdir()
    (run / "watch" / "now.json").write_text('{"version":1,"at":17')
    shown = _windlass(tmp_path, "watch", "--once", "--json")
    assert shown.returncode == 0, shown.stderr
    assert any("not samples of a job" in finding["evidence"] for finding in json.loads(shown.stdout)["findings"])
    refused = _windlass(tmp_path, "exec", "--", "true")
    assert refused.returncode == 2
    assert "does not run: done" in refused.stderr


@each(
    ("words", "said"),
    [
        (("watch",), "no runs in"),
        (("watch", "nothing"), "not a run folder"),
        (("watch", "--demo", "0"), "--demo 0"),
        (("watch", "--demo", "3", "--once", "--prometheus", "/nowhere/x"), "cannot write /nowhere/x"),
        (("watch", "--demo", "3", "--every", "0"), "--every 0"),
        (("watch", "--demo", "3", "--once", "--prometheus", "9"), "--prometheus PORT with --once"),
        (("exec",), "nothing to run"),
        (("exec", "--node", "1", "--rank", "1", "--", "true"), "not allowed with"),
    ],
)
def test_what_cannot_be_is_one_clear_error(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = _windlass(tmp_path, *words)
    assert done.returncode in {2, 3}
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_exec_runs_beside_a_local_run_and_is_ended_at_its_time(tmp_path: Path) -> None:
    argv = windlass_argv("run", "--scheduler", "none", "--site", "workstation", "-r", "1", "--", "sleep", "60")
    environ = {**os.environ, **windlass_env(tmp_path)}
    with subprocess.Popen(argv, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            wait_until(lambda: list((tmp_path / "runs").glob("*/where/0")), timeout_s=60, what="the rank runs")
            beside = _windlass(tmp_path, "exec", "--rank", "0", "--", "sh", "-c", "cat /proc/$WINDLASS_RANK_PID/comm")
            late = _windlass(tmp_path, "exec", "--timeout", "0.5", "--", "sleep", "30")
            nobody = _windlass(tmp_path, "exec", "--node", "nid7", "--", "true")
        finally:
            child.terminate()
            child.communicate(timeout=60)
    assert beside.stdout == "sleep\n", beside.stderr
    assert late.returncode == 124
    assert nobody.returncode == 2
    assert "not a node of this run" in nobody.stderr


def test_the_screen_on_a_terminal_is_drawn_and_given_back(tmp_path: Path) -> None:
    main, other = pty.openpty()
    environ = {**os.environ, **windlass_env(tmp_path), "TERM": "xterm"}
    child = subprocess.Popen(
        windlass_argv("watch", "--demo", "5", "--every", "0.2"), env=environ, stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    seen = b""
    try:
        end = time.monotonic() + 60
        while seen.count(b"\x1b[H") < 3 and time.monotonic() < end:
            seen += os.read(main, 65536)
        os.write(main, b"q")
        while time.monotonic() < end:
            try:
                data = os.read(main, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            seen += data
        assert child.wait(timeout=30) == 0
    finally:
        child.kill()
        child.wait(timeout=10)
        os.close(main)
    assert seen.startswith(b"\x1b[?1049h\x1b[?25l")
    assert b"\x1b[?25h\x1b[?1049l" in seen
    assert b"rank 12: waits 43%" in seen


def test_figures_are_offered_on_a_port_of_this_machine_alone(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = windlass_argv("watch", "--demo", "2", "--every", "0.2", "--prometheus", str(port))
    environ = {**os.environ, **windlass_env(tmp_path)}
    with subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:

        def scraped() -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    return str(answer.read().decode())
            except OSError:
                return ""

        try:
            text = wait_until(scraped, timeout_s=60, what="figures are offered")
        finally:
            child.terminate()
            child.wait(timeout=30)
    assert 'windlass_rank_steps_total{job="demo",rank="0",node="nid00001"}' in text


def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    argv = windlass_argv("watch", "--demo", "2", "--every", "0.2")
    environ = {**os.environ, **windlass_env(tmp_path)}
    with subprocess.Popen(
        argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stderr
        assert child.stdout.readline().startswith(b"demo")
        child.stdout.close()
        said = child.stderr.read()
        assert child.wait(timeout=60) == 128 + 13
    assert said == b""


def test_every_command_shows_the_same_figures_and_findings_of_a_run(tmp_path: Path) -> None:
    steps = _STEPS.replace("0.001", "0.009").replace("range(30)", "range(150)")
    (tmp_path / "steps.py").write_text(steps)
    done = _run(tmp_path, "--watch", "-r", "2", "--cpu-bind", "none", "--", sys.executable, "steps.py")
    assert done.returncode == 0, done.stderr
    watched = json.loads(_windlass(tmp_path, "watch", "--once", "--json").stdout)
    report = json.loads(_windlass(tmp_path, "report", "--json").stdout)
    (listed,) = json.loads(_windlass(tmp_path, "runs", "list", "--json").stdout)
    shown = json.loads(_windlass(tmp_path, "runs", "show", "--json").stdout)
    result = only_run(tmp_path).result
    assert watched["findings"] == report["findings"]
    kinds = [finding["kind"] for finding in report["findings"]]
    assert "input-bound" in kinds
    serious = [finding for finding in report["findings"] if finding["severity"] in {"error", "warning"}]
    assert result["findings"] == serious == shown["attempts"][-1]["record"]["findings"]
    step_ms = {listed["step_ms"], shown["state"]["step_ms"], report["step_ms"], result["step_ms"]}
    assert len(step_ms) == 1
    assert {listed["steps"], shown["state"]["steps"], report["steps"], result["steps"]} == {150}
    assert {listed["seconds"], shown["state"]["seconds"], report["seconds"]} == {result["seconds"]}
    ms = f"{result['step_ms']:.1f}"
    texts = [_windlass(tmp_path, *words).stdout for words in (("watch", "--once"), ("report",), ("runs", "list"))]
    assert all(ms in text for text in texts), (ms, texts)
