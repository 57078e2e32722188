"""A snapshot under a real Slurm: preempted by a signal to the step, then started again on other nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cluster.slurm import SlurmCluster
from requirements import require_torch
from unit.runtime.ranks import SCRIPT, losses
from waiting import wait_until
from windlass.runtime import RESUME_ME, store

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(240)]


def training_argv(nodes: str, *args: object) -> list[str]:
    path = f"PYTHONPATH={os.pathsep.join(p for p in sys.path if p)}"
    options = ["srun", "-w", nodes, "-N2", "-n2", "--ntasks-per-node=1", "--kill-on-bad-exit=0"]
    return [*options, "env", path, "OMP_NUM_THREADS=1", sys.executable, str(SCRIPT), *map(str, args)]


def test_preempted_by_scancel_and_resumed_on_other_nodes_it_gives_the_same_losses(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    options = ("--kind", "ddp", "--every-steps", 5, "--pause", 0.1)
    whole = (tmp_path / "a", 40, "--losses", tmp_path / "a.txt", "--kind", "ddp")
    assert slurm.run(training_argv("nid[0001-0002]", *whole), timeout_s=100).code == 0
    again = (tmp_path / "b", 40, "--losses", tmp_path / "b.txt", *options)
    running = slurm.popen(training_argv("nid[0001-0002]", *again))
    try:
        wait_until(lambda: store.list_snapshots(tmp_path / "b"), timeout_s=90, what="the first snapshot")
        (job,) = slurm.jobs()
        slurm.run(["scancel", "--signal=TERM", job], check=True)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait(10)
    assert running.returncode == RESUME_ME, said
    stopped = store.list_snapshots(tmp_path / "b")[0].step
    assert stopped < 39 and f"SIGTERM: saved step {stopped}" in said
    done = slurm.run(training_argv("nid[0003-0004]", *again), timeout_s=100)
    assert done.code == 0 and f"resuming after step {stopped}" in done.stderr, done.text
    assert losses(tmp_path / "b.txt") == losses(tmp_path / "a.txt")
