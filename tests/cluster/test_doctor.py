"""`windlass doctor` in a Slurm allocation: every node is asked at once, and what is wrong there has a name."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from cluster.command import allocated
from cluster.slurm import Ended, SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def _checks(done: Ended, name: str) -> list[dict[str, Any]]:
    found = json.loads(done.stdout)["checks"]
    return [check for check in found if check["name"] == name]


def _status(done: Ended, name: str) -> dict[str, str]:
    """Status of a check by hosts."""
    return {check.get("hosts", ""): check["status"] for check in _checks(done, name)}


def test_every_node_is_asked_at_once_and_equal_results_are_one(slurm: SlurmCluster, hostile_dir: Path) -> None:
    with allocated(slurm, hostile_dir, "-N4", "--exclusive") as job:
        done = job.windlass("doctor", "--quick", "--json")
    health = json.loads(done.stdout)
    assert (health["nodes"], health["level"]) == (4, "quick")
    for name in ("ulimits", "local space", "network interfaces"):
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
    assert port_found["status"] == "fail" and f"port {port} is taken" in port_found["seen"]
    (interface,) = _checks(done, "interface variables")
    assert interface["hosts"] == "nid[0001-0002]" and "NCCL_SOCKET_IFNAME=hsn9 matches none of" in interface["seen"]
    (setting,) = _checks(done, "settings")
    assert setting["status"] == "fail" and "memhooks" in setting["seen"]
