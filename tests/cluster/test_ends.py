"""Ways in which a job ends on a real Slurm: what `runs list` then says of the run. Lost nodes and preemption are in
`test_supervise` and `test_supervise_jobs`; answers of PBS and Flux in `unit/supervise/test_end_causes`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.command import only_run, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]

_SCRIPT = """
import os, pathlib, signal, sys, time
rank, way, marks = os.environ["RANK"], sys.argv[1], pathlib.Path(sys.argv[2])
(marks / rank).touch()
while len(list(marks.iterdir())) < 2:
    time.sleep(0.02)
if rank == "1" and way == "script error":
    sys.exit(3)
if rank == "1" and way == "signal":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == "1" and way == "full disk":
    with open("/dev/full", "w") as file:
        file.write("x" * 100000)
time.sleep(600)
"""
WAYS = {
    "script error": ("failed", "rank 1 on nid0002 exited with code 3"),
    "signal": ("failed", "rank 1 on nid0002 was killed by SIGKILL"),
    "full disk": ("failed", "No space left on device"),
    "cancel": ("stopped", "stopped on request"),
    "stop": ("stopped", "stopped on request"),
    "stop while waiting": ("stopped", "slurm reports that job {job} was cancelled"),
    "windlass killed": ("failed", "slurm reports that job {job} failed with code 137"),
    "step cancelled": ("failed", "step {job}.0 was cancelled"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_end_of_a_job_is_named(slurm: SlurmCluster, tmp_path: Path, way: str) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "end.py").write_text(_SCRIPT)
    waits = ("--directive=--begin=now+1hour",) if way == "stop while waiting" else ()
    words = ("--python", sys.executable, "-N", "2", "-r", "1", "--time", "5m", *waits, "end.py", way, str(marks))
    environ = windlass_env(tmp_path)
    said = slurm.run(windlass_argv("submit", *words), env=environ, cwd=tmp_path)
    assert said.code == 0, said.text
    job, run = said.stdout.strip(), only_run(tmp_path).path
    if not waits:
        wait_until(lambda: len(list(marks.iterdir())) == 2, timeout_s=90, what="ranks", state=slurm.state)
    if way in {"cancel", "stop while waiting"}:
        slurm.run(["scancel", job], check=True)
    elif way == "stop":
        slurm.run(windlass_argv("runs", "stop", str(run)), env=environ, cwd=tmp_path, check=True)
    elif way == "step cancelled":
        slurm.run(["scancel", f"{job}.0"], check=True)
    elif way == "windlass killed":
        os.kill(json.loads((run / "owner.json").read_text())["pid"], signal.SIGKILL)

    def state() -> dict[str, Any]:
        listed = slurm.run(windlass_argv("runs", "list", "--json"), env=environ, cwd=tmp_path, check=True)
        return dict(json.loads(listed.stdout)[0])

    wait_until(lambda: state()["state"] not in {"running", "waiting"}, timeout_s=90, what="its end", state=slurm.state)
    found, (wanted, words_of) = state(), WAYS[way]
    log = (run / "job.log").read_text() if (run / "job.log").exists() else ""
    assert (found["state"], words_of.format(job=job) in found["why"]) == (wanted, True), (
        f"{found['why']}\n{log[-1500:]}"
    )
    slurm.wait_quiet(timeout_s=60)
