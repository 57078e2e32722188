"""The standby process of a node and the process that asks it for a rank. Real processes, no torch, no launcher."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windlass.node.agent
from waiting import wait_until
from windlass.node.agent import standby
from windlass.node.agent.diagnostics import variable
from windlass.node.agent.modules_hook import record
from windlass.node.sys.identity import start_of
from windlass.plan.agents import STANDBY_MB

NODE = Path(windlass.node.agent.__path__[0])
ABOUT = """
import json, os, resource, signal, sys
print("import" if "decimal" not in sys.modules else "ready", sys.argv[1:])
json.dump({
    "cwd": os.getcwd(), "cpus": sorted(os.sched_getaffinity(0)), "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "in": sys.stdin.read(), "environ": dict(os.environ), "path": sys.path[0], "name": __name__,
    "descriptors": sorted(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
    "deaf": signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN,
}, open(sys.argv[1], "w"))
"""


class Node:
    """A standby in a folder of its own, as the agent and a rank script prepare it."""

    def __init__(self, folder: Path, modules: list[str]) -> None:
        self.folder = folder / "w"
        self.folder.mkdir(mode=0o700)
        for name in ("standby.py", "standby_ask.py"):
            shutil.copy(NODE / name, self.folder)
        (self.folder / "modules").write_text(json.dumps(modules))
        self.env = {**os.environ, "RANK": "7", "LOCAL_WORLD_SIZE": "1", "PYTHONPATH": str(folder)}
        argv = [sys.executable, str(self.folder / "standby.py"), str(self.folder), str(os.getpid())]
        self.process = subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, cwd="/")
        wait_until((self.folder / "standby.json").exists, timeout_s=30, what="the standby has decided")

    @property
    def about(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "standby.json").read_text()))

    def ask(self, script: Path, *words: str, **settings: Any) -> subprocess.Popen[str]:
        wait_until((self.folder / "standby.socket").exists, timeout_s=30, what="the standby waits")
        seat = (str(self.folder), "7", "0", str(self.folder / "where"), "7\tnode\t0\t0")
        argv = [sys.executable, "-I", "-S", str(self.folder / "standby_ask.py"), *seat, sys.executable, str(script)]
        settings = {"env": self.env, "stdin": subprocess.DEVNULL, **settings}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        (self.folder / "7.pid").touch()
        (self.folder / "where").touch()
        return subprocess.Popen([*argv, *words], **pipes, **settings)

    def rank_pid(self) -> int:
        wait_until(lambda: (self.folder / "7.pid").read_text() != "", timeout_s=30, what="the rank runs")
        return int((self.folder / "7.pid").read_text())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, ["json", "decimal", "no_such_module"])
    yield made
    made.process.kill()
    made.process.wait(timeout=20)


def script(folder: Path, text: str) -> Path:
    path = folder / "rank.py"
    path.write_text(text)
    return path


def alive(pid: int) -> bool:
    return start_of(pid) != ""


def test_a_forked_rank_has_what_the_asking_process_has(node: Node, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "input").write_text("from stdin")
    cpus = {min(os.sched_getaffinity(0))}
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def narrow() -> None:
        os.sched_setaffinity(0, cpus)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    rank = script(tmp_path, ABOUT)
    with (tmp_path / "input").open() as given:
        env = {**node.env, "RANK": "3", "NEW": "value"}
        child = node.ask(rank, "out", "more", cwd=work, env=env, stdin=given, preexec_fn=narrow)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (0, "ready ['out', 'more']\n", "")
    seen = json.loads((work / "out").read_text())
    assert (seen["cwd"], seen["in"], seen["path"], seen["name"]) == (str(work), "from stdin", str(tmp_path), "__main__")
    assert (seen["cpus"], seen["files"], seen["threads"]) == (sorted(cpus), [200, hard], 1)
    assert seen["environ"] == env
    assert seen["deaf"]
    assert set(seen["descriptors"]) <= {"0", "1", "2", "3", "4"}
    assert (node.folder / "where").read_text().startswith("7\tnode\t0\t0\t")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("import atexit; atexit.register(print, 'left'); 1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_the_asking_process_ends_as_the_rank_ends(node: Node, tmp_path: Path, text: str, code: int, said: str) -> None:
    child = node.ask(script(tmp_path, text))
    out, err = child.communicate(timeout=30)
    assert child.returncode == code
    assert said in err
    assert ("left" in out) == ("atexit" in text)
    assert "standby" not in err


def test_signals_reach_the_rank_and_its_variables_are_visible_from_outside(node: Node, tmp_path: Path) -> None:
    text = "import signal, time; signal.signal(10, lambda *_: exit(5)); print('up', flush=True); time.sleep(60)"
    child = node.ask(script(tmp_path, text), env={**node.env, "RANK": "3"})
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    assert variable(node.rank_pid(), "RANK") == "3"
    child.send_signal(signal.SIGUSR1)
    child.communicate(timeout=30)
    assert child.returncode == 5


@pytest.mark.parametrize("victim", ["the asking process", "the standby"])
def test_no_rank_outlives_the_processes_that_watch_it(node: Node, tmp_path: Path, victim: str) -> None:
    child = node.ask(script(tmp_path, "import time; print('up', flush=True); time.sleep(60)"))
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    rank = node.rank_pid()
    (child if victim == "the asking process" else node.process).kill()
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    wait_until(lambda: not alive(rank), timeout_s=20, what="the rank has ended")


@pytest.mark.parametrize("why", ["OMP_NUM_THREADS of the rank differs", "Connection refused"])
def test_a_rank_that_a_fork_cannot_be_starts_with_a_fresh_interpreter(node: Node, tmp_path: Path, why: str) -> None:
    env = {**node.env, "OMP_NUM_THREADS": "63"} if "OMP" in why else node.env
    wait_until((node.folder / "standby.socket").exists, timeout_s=30, what="the standby waits")
    if "refused" in why:
        node.process.kill()
        node.process.wait(timeout=20)
    child = node.ask(script(tmp_path, ABOUT), "out", cwd=tmp_path, env=env)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, "import ['out']\n")
    assert f"rank 7 starts with a fresh interpreter: standby: {'' if 'OMP' in why else '[Errno 111] '}{why}" in err
    assert (node.folder / "where").read_text().startswith("7\tnode\t0\t0\t")


def test_a_module_that_starts_a_thread_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "opens.py").write_text("import socket\nkept = socket.socket()\n")
    text = "import time, threading\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (tmp_path / "beats.py").write_text(text)
    node = Node(tmp_path, ["beats", "opens", "decimal"])
    try:
        assert node.about["left_out"] == ["beats", "opens"]
        assert node.about["off"] == ""
        assert 0 < node.about["mb"] < STANDBY_MB == standby.MAX_MB
        child = node.ask(script(tmp_path, ABOUT), "out", cwd=tmp_path)
        assert child.communicate(timeout=30)[0] == "ready ['out']\n"
    finally:
        node.process.kill()
        node.process.wait(timeout=20)


def test_a_second_start_records_the_modules_without_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(str(tmp_path))
    first = (tmp_path / "modules").read_text()
    record(str(tmp_path))
    assert (tmp_path / "modules").read_text() == first
    assert capsys.readouterr().err == ""
    record(str(tmp_path / "missing"))
    assert "the standby gets no modules: FileNotFoundError" in capsys.readouterr().err


def test_a_standby_ends_with_the_script_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    shutil.copy(NODE / "standby.py", tmp_path / "w")
    line = f"{sys.executable} {tmp_path}/w/standby.py {tmp_path}/w $$ > /dev/null & echo $!"
    done = subprocess.run(["/bin/sh", "-c", line], stdout=subprocess.PIPE, text=True, timeout=30)
    wait_until(lambda: not alive(int(done.stdout)), timeout_s=20, what="the standby has ended")
