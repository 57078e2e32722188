"""`windlass run --watch`, `watch` and `exec` under the real Slurm, with an unmodified DDP script of real torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.command import Allocation, allocated, only_run, windlass_argv, windlass_env
from cluster.slurm import SlurmCluster
from requirements import require_torch
from waiting import wait_until
from windlass.diagnose.watch.job import Job, read_history, read_job

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

_TRAINING = """
import os, sys, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(8)

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate(DataLoader(Slow(), batch_size=2)):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    gone = torch.tensor(float(os.path.exists(sys.argv[1])))
    dist.all_reduce(gone)
    if gone:
        print("steps", step + 1, flush=True)
        break
dist.destroy_process_group()
"""


def _seen(job: Allocation) -> Job | None:
    path = next((job.folder / "runs").glob("*/watch"), None)
    return read_job(path.parent) if path else None


def _outside(slurm: SlurmCluster, folder: Path, command: str, *words: str) -> Any:
    """From a login node: nothing of the job is in the environment."""
    return slurm.run(windlass_argv(command, *words), env=windlass_env(folder), cwd=folder, timeout_s=60)


@pytest.mark.torch
def test_steps_of_an_unmodified_script_on_two_nodes_are_seen_and_a_second_look_goes_beside_them(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    require_torch()
    script, stop = tmp_path / "train.py", tmp_path / "stop"
    script.write_text(_TRAINING)
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        child = job.popen("--watch", "-r", "1", "--threads", "1", str(script), str(stop))
        try:
            wait_until(
                lambda: (seen := _seen(job)) and len(seen.ranks) == 2 and min(rank.steps for rank in seen.ranks) > 25,
                timeout_s=120,
                what="steps of both ranks are seen",
                state=lambda: str(_seen(job)),
            )
            looked = _outside(slurm, tmp_path, "watch", "--once", "--json")
            beside = _outside(
                slurm,
                tmp_path,
                "exec",
                "--rank",
                "1",
                "--",
                "sh",
                "-c",
                "echo $SLURMD_NODENAME $WINDLASS_RANK_PID; exit 5",
            )
            stop.touch()
            said, _ = child.communicate(timeout=90)
        finally:
            stop.touch()
            child.kill()
            child.communicate(timeout=30)
    assert child.returncode == 0, said
    data = json.loads(looked.stdout)
    assert data["worst"]["kind"] == "input-bound", looked.text
    assert [node[0] for node in data["job"]["nodes"]] == ["nid0001", "nid0002"]
    assert beside.code == 5, beside.text
    host, pid = beside.stdout.split()
    assert (host, pid.isdigit()) == ("nid0002", True)
    steps = int(said.split("steps")[1].split()[0])
    run = only_run(tmp_path).path
    last = read_job(run)
    assert last is not None
    assert last.ended
    assert [(rank.rank, rank.node, rank.activity, rank.steps) for rank in last.ranks] == [
        (0, 0, "ended", steps),
        (1, 1, "ended", steps),
    ]
    assert all((rank.all_wait_share or 0.0) > 0.3 for rank in last.ranks)
    assert all(node.at and node.memory_limit_bytes for node in last.nodes)
    head, lines, torn = read_history(run)
    assert head is not None
    assert (head.hosts, head.ranks, torn) == (("nid0001", "nid0002"), (0, 1), 0)
    assert any(line.ranks[0][0] for line in lines)
    assert not list(run.glob("exec-*"))


def test_samplers_go_away_when_windlass_is_killed(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        child = job.popen("--watch", "-r", "1", "--", "sleep", "77")
        try:
            wait_until(
                lambda: (seen := _seen(job)) and sum(rank.activity == "command" for rank in seen.ranks) == 2,
                timeout_s=60,
                what="both ranks are seen",
                state=lambda: str(_seen(job)),
            )
            folders = set(Path("/tmp").glob("windlass-*.agents"))
            child.kill()
            child.communicate(timeout=30)
        finally:
            child.kill()
            child.communicate(timeout=30)
        wait_until(
            lambda: not any("manifest.json" in words for words in slurm.step_processes().values()),
            timeout_s=60,
            what="no agent runs",
            state=slurm.state,
        )
        mine = only_run(tmp_path).path.joinpath("run-id").read_text().strip()
        wait_until(
            lambda: not [path for path in folders if mine in path.name and path.exists()],
            timeout_s=30,
            what="its folder is gone",
        )
