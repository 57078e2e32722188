"""`windlass run --cache` on this machine alone: environments of every kind, and nothing left however it ends."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import leftovers
from requirements import require_fuse
from waiting import wait_until
from windlass.node.sys.identity import start_of

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]
SRC = Path(__file__).parents[3] / "src"
SITE = """
name = "here"
extends = "workstation"
[storage]
local = "{local}"
"""


def windlass_words(folder: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """The command and its environment; agents' folders are below `folder`, so that leftovers are seen."""
    require_fuse()
    site = folder / "site.toml"
    site.write_text(SITE.format(local=folder / "local"))
    (folder / "local").mkdir(exist_ok=True)
    own = {"WINDLASS_TRACES": str(folder / "traces"), "WINDLASS_RUNS": str(folder / "runs")}
    env = {**os.environ, "PYTHONPATH": str(SRC), "WINDLASS_CONFIG": str(folder / "none"), **own}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        env.pop(name, None)
    return [sys.executable, "-m", "windlass", words[0], "--site", str(site), *words[1:]], env


def windlass(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv, env = windlass_words(folder, *words)
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, cwd=folder, env={**env, **more})


def conda_environment(prefix: Path) -> Path:
    """An environment with an interpreter and a standard library of its own, as conda makes them."""
    python = Path(os.path.realpath("/usr/bin/python3"))
    version = python.name
    shutil.copytree(
        Path(sysconfig.get_path("stdlib", vars={"installed_base": "/usr", "py_version_short": version[6:]})),
        prefix / "lib" / version,
        ignore=shutil.ignore_patterns(
            "test", "tests", "idlelib", "ensurepip", "*.a", "config-*", "lib2to3", "turtledemo"
        ),
        symlinks=False,
        ignore_dangling_symlinks=True,
    )
    (prefix / "bin").mkdir()
    shutil.copy(python, prefix / "bin" / version)
    (prefix / "bin" / "python").symlink_to(version)
    (prefix / "conda-meta").mkdir()
    (prefix / "lib" / version / "site-packages").mkdir(exist_ok=True)
    script = prefix / "bin" / "tool"
    script.write_text(f"#!{prefix}/bin/python\nimport sys, os; print(sys.prefix, os.__file__)\n")
    script.chmod(0o755)
    return prefix


def test_conda_environment_runs_from_the_view_with_its_own_library(tmp_path: Path) -> None:
    env = conda_environment(tmp_path / "conda")
    (tmp_path / "train.py").write_text("import sys, os; print(sys.prefix, os.__file__)\n")
    script = windlass(tmp_path, "run", "--cache", str(env), "-r", "2", "--show", "all", "train.py")
    tool = windlass(tmp_path, "run", "--cache", str(env), "--", "tool", PATH=f"{env}/bin:{os.environ['PATH']}")
    for done, lines in ((script, 2), (tool, 1)):
        assert done.returncode == 0, done.stdout + done.stderr
        said = [line for line in done.stdout.splitlines() if f"/view{env}" in line]
        assert len(said) == lines and all(line.count(f"/view{env}") == 2 for line in said), done.stdout
    assert (
        "of the environment that --cache names"
        in windlass(tmp_path, "plan", "--cache", str(env), "--explain", "train.py").stdout
    )


def test_view_cannot_be_written_and_the_source_can(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    words = ("run", "--cache", str(root), "--", "sh", "-c", f'touch "$WINDLASS_VIEW{root}/x" || touch "{root}/y"')
    done = windlass(tmp_path, *words)
    assert done.returncode == 0 and "Read-only file system" in done.stdout, done.stdout + done.stderr
    assert [path.name for path in root.iterdir()] == ["y"]


def test_cache_lies_in_the_folder_it_is_given_and_root_may_enter(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root, allow_other depends on /etc/fuse.conf")
    root, store = tmp_path / "data", tmp_path / "disk of the node"
    root.mkdir()
    (root / "file").write_text("read through the view")
    look = f'cat "$WINDLASS_VIEW{root}/file"; ls -d "$STORE"/*/1; grep windlass /proc/self/mountinfo'
    keys = ("store=${STORE}", "allow-other=on", "readers=2", "trace=off")
    how = [word for key in keys for word in ("--cache-set", key)]
    done = windlass(tmp_path, "run", "--cache", str(root), *how, "--", "sh", "-c", look, STORE=str(store))
    assert done.returncode == 0 and "read through the view" in done.stdout, done.stdout + done.stderr
    assert "allow_other" in done.stdout and f"{store}/windlass-" in done.stdout
    assert not list(store.iterdir())


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_however_windlass_ends(tmp_path: Path, sig: signal.Signals, mark: str) -> None:
    root = tmp_path / "data"
    root.mkdir()
    argv, env = windlass_words(tmp_path, "run", "--cache", str(root), "--", "sleep", "60")
    child = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: any(words == "sleep 60" for _, words in leftovers.marked_processes(mark)),
            timeout_s=30,
            what="the rank runs",
        )
        assert leftovers.mounts_under(tmp_path)
        child.send_signal(sig)
        child.wait(timeout=30)
        wait_until(lambda: not leftovers.mounts_under(tmp_path), timeout_s=20, what="the mount is gone")
        wait_until(lambda: not leftovers.marked_processes(mark), timeout_s=20, what="all processes are gone")
    finally:
        child.kill()
        child.wait(timeout=30)
    assert not list((tmp_path / "local").glob("windlass-*/*/*"))
    assert not list((tmp_path / "runs").glob("*/agent.pyz")) or sig == signal.SIGKILL


READS = """
import hashlib, os, pathlib, sys, time
view = pathlib.Path(os.environ["WINDLASS_VIEW"] + sys.argv[1])
print((view / "first").read_text(), flush=True)
deadline = time.monotonic() + 60
while not pathlib.Path(sys.argv[2]).exists() and time.monotonic() < deadline:
    time.sleep(0.05)
print(hashlib.sha256((view / "second").read_bytes()).hexdigest(), flush=True)
"""


@pytest.mark.parametrize("which", ["agent", "keeper"])
def test_view_stays_when_the_agent_is_killed_and_it_costs_a_warning(tmp_path: Path, which: str, mark: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "first").write_text("one")
    (data / "second").write_bytes(os.urandom(1_000_000))
    (tmp_path / "read.py").write_text(READS)
    go = tmp_path / "go"
    argv, env = windlass_words(
        tmp_path, "run", "--cache", str(data), "--show", "all", "--", sys.executable, "read.py", str(data), str(go)
    )
    child = subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert child.stdout is not None
        seen = ""
        while not seen.endswith("one\n"):
            line = child.stdout.readline()
            assert line, seen
            seen += line
        (number,) = (tmp_path / "local").glob("*/a/*/pid")
        keeper = int(number.read_text())
        worker = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
        victim = worker if which == "agent" else keeper
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not start_of(victim), timeout_s=30, what="it is gone")
        time.sleep(2.5)  # longer than those who follow the agent need to notice
        go.touch()
        rest, _ = child.communicate(timeout=90)
    finally:
        child.kill()
        child.wait(timeout=30)
    assert child.returncode == 0, seen + rest
    assert hashlib.sha256((data / "second").read_bytes()).hexdigest() in rest
    assert ("killed by signal 9" if which == "agent" else "lost its keeper") in seen + rest
    wait_until(lambda: not leftovers.mounts_under(tmp_path), timeout_s=30, what="the mount is gone")
    wait_until(lambda: not leftovers.marked_processes(mark), timeout_s=30, what="all processes are gone")
    assert not list((tmp_path / "local").glob("windlass-*/*/*"))


def test_folder_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = windlass(tmp_path, "run", "--cache", str(tmp_path / "nowhere"), "--", "true")
    assert done.returncode == 2 and "does not exist" in done.stderr
    assert not (tmp_path / "runs").exists()
