"""Signals for the ranks, handed on through a real srun."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]

SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: (print("warned", os.environ["RANK"], flush=True), sys.exit(0)))
print("up", flush=True)
time.sleep(60)
"""


def test_a_warning_reaches_every_rank_of_every_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(SCRIPT)

    def up() -> bool:
        logs = list((tmp_path / "runs").glob("*/out/*")) if (tmp_path / "runs").exists() else []
        return sum(log.read_text().count("up") for log in logs) == 4

    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        child = job.popen("-r", "2", "--show", "all", "wait.py")
        with child:
            wait_until(up, timeout_s=40, what="all four ranks are up")
            child.send_signal(signal.SIGUSR1)
            stdout, stderr = child.communicate(timeout=40)
    assert child.returncode == 0, stderr
    assert sorted(line for line in stdout.splitlines() if "warned" in line) == [f"[{r}] warned {r}" for r in range(4)]
