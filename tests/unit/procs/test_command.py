"""The one place that runs commands: output, errors, deadlines, and no child left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from waiting import wait_until
from windlass.base.procs.command import run_command, which
from windlass.errors import CommandError, DeadlineError


def _python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_output_and_code_are_kept() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = run_command(_python(code), timeout_s=20, check=False)
    assert (done.code, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_failure_says_the_commands_own_last_word() -> None:
    with pytest.raises(CommandError, match="code 3: no such queue") as caught:
        run_command(("sh", "-c", "echo trying; echo no such queue >&2; exit 3"), timeout_s=20)
    assert caught.value.code == 3
    assert caught.value.argv[0] == "sh"


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandError, match="cannot run /no/such/qsub: No such file"):
        run_command(("/no/such/qsub",), timeout_s=20)


def test_a_silent_command_meets_its_deadline_and_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ >> '{pids}'; sleep 60 & echo $! >> '{pids}'; wait"
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"within 0\.5 s") as caught:
        run_command(("sh", "-c", script), timeout_s=0.5)
    assert time.monotonic() - began < 20
    assert caught.value.transient
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    wait_until(lambda: all(map(_gone, started)), timeout_s=30, what="the command and its child are gone")


def test_input_reaches_the_command() -> None:
    assert run_command(("cat",), timeout_s=20, input_text="two\nlines\n").stdout == "two\nlines\n"


def test_a_command_without_input_reads_end_of_file_at_once() -> None:
    assert run_command(("cat",), timeout_s=20).stdout == ""


def test_bytes_that_are_not_text_come_through_unharmed() -> None:
    done = run_command(("printf", r"\377\376"), timeout_s=20)
    assert os.fsencode(done.stdout) == b"\xff\xfe"


def test_the_environment_is_exactly_the_one_given() -> None:
    done = run_command(("env",), timeout_s=20, env={"PATH": os.environ["PATH"], "ONLY": "this"})
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "ONLY" in names
    assert "HOME" not in names


def test_a_large_output_does_not_block() -> None:
    assert len(run_command(_python("print('x' * 5_000_000)"), timeout_s=60).stdout) == 5_000_001


def test_which_looks_in_the_given_path(tmp_path: Path) -> None:
    program = tmp_path / "srun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert which("srun", {"PATH": str(tmp_path)}) == str(program)
    assert which("srun", {"PATH": str(tmp_path / "empty")}) is None


_PARENT = """
import signal, subprocess, sys, time
from windlass.base.procs.command import pdeathsig
child = subprocess.Popen(["sleep", "60"], preexec_fn=pdeathsig(signal.SIGTERM))
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_dies_with_its_parent_even_when_that_is_killed() -> None:
    parent = subprocess.Popen(
        _python(_PARENT),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert not _gone(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=30)
    parent.stdout.close()
    wait_until(lambda: _gone(child), timeout_s=30, what="the child is gone")


def test_an_interrupted_command_is_asked_to_stop_before_it_is_killed(tmp_path: Path) -> None:
    """A builder has containers to remove, a launcher has tasks on other nodes."""
    ready, stopped = tmp_path / "ready", tmp_path / "stopped"
    script = f"trap 'echo yes > {stopped}; exit 0' TERM; echo > {ready}; while :; do sleep 0.1; done"

    def interrupt(_: int, __: object) -> None:
        raise KeyboardInterrupt

    def when_ready() -> None:
        wait_until(ready.exists, timeout_s=60, what="the command listens")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(target=when_ready)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_command(("sh", "-c", script), timeout_s=120, stop_with=signal.SIGTERM)
    finally:
        watcher.join(timeout=60)
        signal.signal(signal.SIGUSR1, before)
    assert stopped.read_text() == "yes\n"
