"""`windlass alloc`: the nodes of a real Slurm, handed to a terminal or to a command."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.command import SHOW, json_lines, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


def test_a_command_runs_in_the_allocation_and_its_code_is_ours(slurm: SlurmCluster, hostile_dir: Path) -> None:
    """The ranks of a `windlass run` in it are on both nodes; a pipe that breaks ends its writer, as in any shell."""
    inside = shlex.join(windlass_argv("run", "--python", sys.executable, "--show", "all", str(SHOW)))
    text = f"{inside}; (yes; echo writer $? >&2) | head -n 1 >/dev/null; exit 7"
    argv = windlass_argv("alloc", "-N", "2", "-r", "1", "-t", "5", "--", "sh", "-c", text)
    said = slurm.run(argv, env={**windlass_env(hostile_dir), "SHOW": "RANK"}, cwd=hostile_dir)
    assert said.code == 7, said.text
    lines = json_lines(said.stdout)
    assert {(line["environ"]["RANK"], line["host"]) for line in lines} == {("0", "nid0001"), ("1", "nid0002")}
    assert "writer 141" in said.stderr
    assert slurm.jobs() == {}


def test_a_terminal_gets_a_shell_and_its_exit_code(slurm: SlurmCluster, hostile_dir: Path) -> None:
    ours, theirs = pty.openpty()
    env = slurm.env({**windlass_env(hostile_dir), "SHELL": "/bin/sh", "PS1": "", "TERM": "dumb"})
    argv = ["setsid", "--ctty", *windlass_argv("alloc", "-N", "2", "-t", "5")]
    shell = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=hostile_dir)
    os.close(theirs)
    os.write(ours, b'test -t 0 && echo "nodes=$SLURM_JOB_NUM_NODES"; exit 5\n')
    seen = b""
    while True:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the other side is closed: the shell has ended
            break
    os.close(ours)
    assert shell.wait(timeout=60) == 5, seen
    assert b"nodes=2" in seen


def test_a_refusal_of_the_scheduler_is_its_own(slurm: SlurmCluster, hostile_dir: Path) -> None:
    argv = windlass_argv("alloc", "-N", "2", "-p", "nowhere", "--", "true")
    said = slurm.run(argv, env=windlass_env(hostile_dir), cwd=hostile_dir)
    assert said.code != 0
    assert "partition" in said.stderr
    assert "Traceback" not in said.text
