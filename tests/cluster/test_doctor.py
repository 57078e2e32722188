"""`windlass doctor` in a Slurm allocation: every node is asked at once, and what is wrong there has a name."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.command import SHOW, allocated, json_lines
from cluster.slurm import Ended, SlurmCluster
from requirements import require_torch

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def _checks(done: Ended, name: str) -> list[dict[str, Any]]:
    found = json.loads(done.stdout)["findings"]
    return [check for check in found if check["kind"] == name]


def _status(done: Ended, name: str) -> dict[str, str]:
    """Status of a check by hosts."""
    return {check.get("subject", ""): check["severity"] for check in _checks(done, name)}


def test_every_node_is_asked_at_once_and_equal_results_are_one(slurm: SlurmCluster, hostile_dir: Path) -> None:
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.windlass("doctor", "--quick", "--json")
    health = json.loads(done.stdout)
    assert (health["nodes"], health["level"]) == (4, "quick")
    for name in ("ulimits", "local-space", "network-interfaces"):
        assert list(_status(done, name)) == ["nid[0001-0004]"], done.text
    assert _status(done, "port") == {"nid0001": "ok"}
    assert _status(done, "rendezvous") == {"nid[0001-0004]": "ok"}
    assert _status(done, "clock") == {"nid[0002-0004]": "ok"}
    assert not (hostile_dir / "runs").exists() or not list((hostile_dir / "runs").iterdir())


def test_planted_faults_have_names(slurm: SlurmCluster, hostile_dir: Path) -> None:
    with socket.socket() as taken, allocated(slurm, hostile_dir, "-N2", "--exclusive") as job:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = (
            "--master-port",
            str(port),
            "--env",
            "NCCL_SOCKET_IFNAME=hsn9",
            "--env",
            "FI_MR_CACHE_MONITOR=memhooks",
        )
        done = job.windlass("doctor", "--quick", "--json", *words, "--", "torchrun", "train.py")
    assert done.code == 1
    (port_found,) = _checks(done, "port")
    assert port_found["severity"] == "error" and f"port {port} is in use" in port_found["evidence"]
    (interface,) = _checks(done, "interface-variables")
    assert (
        interface["subject"] == "nid[0001-0002]" and "NCCL_SOCKET_IFNAME=hsn9 matches none of" in interface["evidence"]
    )
    (setting,) = _checks(done, "settings")
    assert setting["severity"] == "error" and "memhooks" in setting["evidence"]


def _script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_ranks_that_get_other_cpus_than_planned_are_found(slurm_bound: SlurmCluster, hostile_dir: Path) -> None:
    python = _script(hostile_dir, "python", f'#!/bin/sh\nexec taskset -c 0 {sys.executable} "$@"\n')
    with allocated(slurm_bound, hostile_dir, "-N2", "--exclusive") as job:
        done = job.windlass("doctor", "--quick", "--json", "-r", "1", "--python", str(python))
    assert done.code == 1, done.text
    (found,) = _checks(done, "affinity")
    assert (found["subject"], found["severity"]) == ("nid[0001-0002]", "error")
    assert found["evidence"].startswith("local rank 0 is on CPUs 0 instead of 0-")
    assert _checks(done, "ranks")[0]["severity"] == "ok"


OTHER_PYTHON = """#!/bin/sh
[ "$SLURMD_NODENAME" = nid0002 ] && exec /usr/bin/python3 "$@"
exec {python} "$@"
"""


def test_a_check_before_the_run_leaves_a_bad_node_out(slurm: SlurmCluster, hostile_dir: Path) -> None:
    """One node finds another Python, with another torch (none)."""
    require_torch()
    python = _script(hostile_dir, "python", OTHER_PYTHON.format(python=sys.executable))
    state = {"WINDLASS_STATE": str(hostile_dir / "state")}
    words = ("-r", "1", "--python", str(python), "--show", "all", str(SHOW))
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.windlass("run", "--check", "--spares", "1", *words, env=state)
        again = job.windlass("run", "--check", "--hosts", "nid[0001-0003]", "--nodes", "3", *words, env=state)
        listed = job.windlass("nodes", "list", "--json", env=state)
    assert done.code == 0, done.text
    assert sorted(line["host"] for line in json_lines(done.stdout)) == ["nid0001", "nid0003", "nid0004"]
    assert "a spare node replaces nid0002" in done.stderr
    (node,) = json.loads(listed.stdout)
    assert node["host"] == "nid0002" and node["reason"].startswith("same-environment: ")
    assert again.code != 0 or "nid0002" not in again.stdout, again.text
    assert not (next((hostile_dir / "runs").iterdir()) / "check").exists()


SLOW = """
import os
if os.environ.get("SLURMD_NODENAME") == "nid0003":
    import threading, time
    def slow():
        import sys
        while "torch.distributed.distributed_c10d" not in sys.modules or not hasattr(
            sys.modules["torch.distributed.distributed_c10d"], "destroy_process_group"
        ):
            time.sleep(0.01)
        import torch.distributed as dist
        quick = dist.all_reduce
        def all_reduce(*words, **named):
            time.sleep(0.5)
            return quick(*words, **named)
        dist.all_reduce = all_reduce
    threading.Thread(target=slow, daemon=True).start()
"""


@pytest.mark.slow
def test_the_slow_node_of_four_is_found_and_remembered(slurm: SlurmCluster, hostile_dir: Path) -> None:
    """Real gloo ranks; on one node every all-reduce starts half a second late."""
    require_torch()
    (hostile_dir / "sitecustomize.py").write_text(SLOW)
    state = {"WINDLASS_STATE": str(hostile_dir / "state")}
    words = ("doctor", "--full", "--json", "-r", "1", "--python", sys.executable)
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.windlass(*words, "--env-prepend", f"PYTHONPATH={hostile_dir}", env=state, timeout_s=150)
        listed = job.windlass("nodes", "list", "--json", env=state)
    assert done.code == 1, done.text
    (found,) = _checks(done, "slow-node")
    assert (found["subject"], found["severity"]) == ("nid0003", "error"), done.text
    (node,) = json.loads(listed.stdout)
    assert node["host"] == "nid0003" and "slow-node" in node["reason"]
