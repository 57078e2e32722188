"""The test cluster itself is a real Slurm: it places ranks, binds them, runs batch jobs, and dies with its session."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.keeper import descendants
from cluster.slurm import SlurmCluster
from waiting import wait_until

pytestmark = pytest.mark.slurm

_WHERE = "import json,os; print(json.dumps([os.environ['SLURMD_NODENAME'], sorted(os.sched_getaffinity(0))]))"


def test_eight_ranks_sit_on_four_nodes(slurm: SlurmCluster) -> None:
    done = slurm.run(
        ["srun", "-N4", "--ntasks-per-node=2", "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME"], check=True
    )
    placed = sorted(line.split() for line in done.stdout.splitlines())
    assert placed == [[str(rank), f"nid{1 + rank // 2:04d}"] for rank in range(8)]


def test_ranks_are_bound_to_the_listed_cores(slurm_bound: SlurmCluster) -> None:
    cpu = min(os.sched_getaffinity(0))
    argv = ["srun", "-N2", "-n2", f"--cpu-bind=map_cpu:{cpu}", sys.executable, "-c", _WHERE]
    done = slurm_bound.run(argv, check=True)
    assert sorted(map(json.loads, done.stdout.splitlines())) == [["nid0001", [cpu]], ["nid0002", [cpu]]]


def test_a_batch_job_runs_a_step_on_its_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    wrap = "srun sh -c 'echo $SLURMD_NODENAME'"
    said = slurm.run(["sbatch", "--parsable", "-N3", "-o", str(out), "--wrap", wrap], check=True)
    assert slurm.wait_job(said.stdout.strip(), timeout_s=30)["ExitCode"] == "0:0"
    assert sorted(out.read_text().split()) == ["nid0001", "nid0002", "nid0003"]


def test_node_names_resolve_on_the_nodes_and_only_there(slurm: SlurmCluster) -> None:
    done = slurm.run(["srun", "-N1", "-w", "nid0001", "getent", "hosts", "nid0002"], check=True)
    assert done.stdout.split() == ["127.0.0.12", "nid0002"]
    assert slurm.run(["getent", "hosts", "nid0002"]).code != 0


def test_a_node_can_be_restarted(slurm: SlurmCluster) -> None:
    slurm.stop_node("nid0002")
    slurm.start_node("nid0002")
    done = slurm.run(["srun", "-N1", "-w", "nid0002", "sh", "-c", "echo $SLURMD_NODENAME"], check=True)
    assert done.stdout == "nid0002\n"


_ESCAPE = """
import os, time
child = os.fork()
if child:
    os.waitpid(child, 0)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for fd in (0, 1, 2):
    os.close(fd)
time.sleep(30)
"""


def test_an_orphan_of_a_rank_is_seen(slurm: SlurmCluster) -> None:
    slurm.run(["srun", "-N1", "-n1", sys.executable, "-c", _ESCAPE], check=True)
    wait_until(lambda: list(slurm.jobs()) == [], timeout_s=30, what="the job is over")
    orphans = [pid for pid, words in slurm.step_processes().items() if "time.sleep(30)" in words]
    assert len(orphans) == 1
    slurm.clear()


_SESSION = """
import time
from cluster.slurm import Shape, SlurmCluster
from waiting import wait_until

cluster = SlurmCluster(Shape(flavour="wide", nodes=2))
cluster.start()
step = cluster.popen(["srun", "-N2", "sleep", "600"])
sleepers = lambda: [words for words in cluster.step_processes().values() if words.endswith("sleep 600")]
wait_until(lambda: len(sleepers()) == 2, timeout_s=20, what="both ranks sleep")
print(cluster._keeper.pid, step.pid, cluster.folder, flush=True)
time.sleep(600)
"""


def test_nothing_survives_a_killed_session() -> None:
    session = subprocess.Popen(
        [sys.executable, "-c", _SESSION],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    assert session.stdout
    try:
        keeper, client, folder = session.stdout.readline().split(maxsplit=2)
        below = descendants(int(keeper))
        assert len(below) > 6
    finally:
        os.killpg(session.pid, signal.SIGKILL)
        session.wait(timeout=30)
        session.stdout.close()
        with contextlib.suppress(ProcessLookupError):  # srun's helper would go on asking for a controller
            os.killpg(int(client), signal.SIGKILL)
    gone = {int(keeper), *below}
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in gone), timeout_s=20, what="every process has gone"
    )
    subprocess.run(["rm", "-r", folder.strip()], check=True, timeout=30)
