"""A rank that the kernel kills for memory: a real limit, a real kill."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import require
from unit.cli.typed import argv, environment, only_run, script
from windlass.node.agent.diagnostics import memory_groups

HUNGRY = """
import os, time
if os.environ["RANK"] == "1":
    held = [bytearray(16 << 20) for _ in range(64)]
time.sleep(60)
"""
_LIMIT = 400 << 20


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory, below our own; only root can make one."""
    line = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None)
    own = f"memory{line.split(':', 2)[2]}" if line else Path("/proc/self/cgroup").read_text().split("::", 1)[1].strip()
    path = Path("/sys/fs/cgroup") / own.strip("/") / f"windlass-test-{os.getpid()}"
    try:
        path.mkdir()
        limit = path / ("memory.limit_in_bytes" if line else "memory.max")
        limit.write_text(str(_LIMIT))
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        require("memcg", False, f"cannot make a control group with a memory limit: {error}")
    try:
        yield path
    finally:
        path.rmdir()


def test_a_rank_killed_for_memory_is_told_from_one_that_was_just_killed(group: Path, tmp_path: Path) -> None:
    words = ("run", "--scheduler", "none", "-r", "2", "--restarts", "2", "--cpu-bind", "none", "--show", "none")
    inside = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", inside, "sh", *argv(*words, str(script(tmp_path, HUNGRY)))]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=90)
    assert done.returncode == 137, done.stderr
    assert "rank 1 on " in done.stderr and "killed for memory" in done.stderr
    assert "out of memory twice at the same place" in done.stderr
    verdict = json.loads((only_run(tmp_path) / "verdict.json").read_text())
    assert (verdict["cause"]["kind"], verdict["decision"]["action"]) == ("memory", "stop")
    assert "fewer ranks per node" in verdict["decision"]["hint"]


def test_the_jobs_group_counts_above_those_of_steps_and_tasks() -> None:
    new = "0::/system.slice/slurmstepd.scope/job_71/step_3/user/task_0\n"
    assert memory_groups(new) == [("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_71", "memory.events")]
    old = "9:name=systemd:/x\n4:memory:/slurm/uid_10/job_71/step_3\n0::/\n"
    assert memory_groups(old) == [("/sys/fs/cgroup/memory/slurm/uid_10/job_71", "memory.oom_control")]
    pbs = "0::/pbs_jobs.service/jobid/123.server/\n"
    assert memory_groups(pbs) == [("/sys/fs/cgroup/pbs_jobs.service/jobid/123.server", "memory.events")]
    plain = "0::/user.slice/user-1000.slice/session-4.scope\n"
    assert memory_groups(plain) == [("/sys/fs/cgroup/user.slice/user-1000.slice/session-4.scope", "memory.events")]
    assert memory_groups("0::/\n") == []
