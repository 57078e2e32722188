"""Every example on two nodes of a real Slurm, with the command of its README."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.command import allocated, json_lines, only_run
from cluster.slurm import SlurmCluster
from requirements import require_fuse, require_mpi, require_torch

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

IMAGES = (
    *("--rank={rank}", "--world-size={world_size}", "--gpu={local_rank}"),
    "--dist-url=tcp://{master_addr}:{master_port}",
)
MEET = ("--master_addr={master_addr}", "--master_port={master_port}")


@pytest.mark.mpi
def test_hello_and_the_sum_of_a_gradient_over_mpi_ranks_of_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_mpi()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        hello = job.run_python("-r", "2", "--mpi", "pmi2", "--show", "all", str(EXAMPLES / "hello/hello.py"))
        summed = job.run_python("-r", "2", "--mpi", "pmi2", str(EXAMPLES / "allreduce/allreduce.py"))
    assert hello.code == 0, hello.text
    assert sorted(re.findall(r"rank (\d) of 4 on (\S+): sum 6", hello.stdout))[-1][0] == "3", hello.text
    assert "4 ranks: the sum is 6 everywhere, the average 1.5" in summed.stdout, summed.text


def test_arguments_that_only_a_rank_knows_and_horovod_s_variables_are_filled_in_on_two_nodes(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    words = ("--rank={rank}", "--dist-url=tcp://{master_addr}:{master_port}")
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.run_python(
            "-r", "2", "--show", "all", str(EXAMPLES / "args/show.py"), *words, env={"SHOW": "HOROVOD_*"}
        )
    assert done.code == 0, done.text
    shown = {line["argv"][0]: line for line in json_lines(done.stdout)}
    assert sorted(shown) == [f"--rank={rank}" for rank in range(4)]
    assert len({line["argv"][1] for line in shown.values()}) == 1
    assert {line["host"] for line in shown.values()} == {"nid0001", "nid0002"}
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    last = shown["--rank=3"]["environ"]
    assert [last[f"HOROVOD_{name}"] for name in names] == ["3", "4", "1", "2", "1", "2"]


@pytest.mark.slow
@pytest.mark.torch
def test_the_tutorial_of_frontier_trains_on_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_torch()
    words = ("-r", "1", "--threads", "1", str(EXAMPLES / "multinode/multinode.py"), "2", "1", *MEET)
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.run_python(*words, timeout_s=150)
    assert done.code == 0, done.text
    assert re.search(r"done: loss [\d.]+, ranks 2", done.stdout), done.text
    assert (tmp_path / "snapshot.pt").exists()


@pytest.mark.slow
@pytest.mark.torch
def test_a_rank_is_lost_on_the_second_node_and_the_run_goes_on_from_its_snapshot(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    require_torch()
    small = ("--steps", "30", "--width", "16", "--batch-size", "8", "--save-every", "5", "--lose-rank-at", "12")
    words = ("-r", "1", "--threads", "1", "--restarts", "2", "--watch", str(EXAMPLES / "multinode/survive.py"))
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.run_python(*words, *small, timeout_s=220)
        told = job.windlass("report", str(only_run(tmp_path).path))
    assert done.code == 0, done.text
    assert re.search(r"done: loss [\d.]+ after 30 steps, this time from step (5|10)", done.stdout), done.text
    assert "went-on: 1 of 2 starts failed" in told.stdout, told.text
    assert "was killed by SIGKILL" in told.stdout, told.text


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.fuse
def test_images_come_from_a_tree_from_the_nodes_memory_and_from_the_cache(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_torch()
    require_fuse()
    data = tmp_path / "data"
    subprocess.run(
        [sys.executable, str(EXAMPLES / "imagenet/make_data.py"), str(data), "4", "8"], check=True, timeout=60
    )
    subprocess.run(["tar", "-C", str(data), "-cf", str(tmp_path / "data.tar"), "."], check=True, timeout=60)
    words = ("-r", "1", "--threads", "1", str(EXAMPLES / "imagenet/main.py"), *IMAGES)
    memory = tmp_path / "memory"
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        staged = job.windlass("stage", str(tmp_path / "data.tar"), "--to", str(memory), "--extract")
        assert staged.code == 0, staged.text
        partition = ("--cache", str(data), "--cache-set", "placement=partition", "--run-dir", "cached")
        runs = {way: job.run_python(*words, str(way), timeout_s=150) for way in (data, memory / "data")}
        cached = job.run_python(*partition, *words, "{view}" + str(data), timeout_s=150)
    for done in (*runs.values(), cached):
        assert done.code == 0, done.text
        assert re.search(r"epoch 0: loss \d\.\d+, [1-9]\d* images/s", done.stdout), done.text
    read = json.loads((tmp_path / "cached" / "cache.json").read_text())["total"]
    assert read["source_bytes"] == sum(path.stat().st_size for path in data.rglob("*.raw")), "each byte was read once"


@pytest.mark.slow
@pytest.mark.torch
def test_the_script_for_aurora_trains_on_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_torch()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        told = job.run_python("-r", "1", "--show", "all", str(EXAMPLES / "aurora/device_info.py"), timeout_s=150)
        words = ("-r", "1", "--threads", "1", str(EXAMPLES / "aurora/train.py"), "--channels-last", "--steps", "2")
        done = job.run_python(*words, timeout_s=150)
    assert told.stdout.count("x cpu, ZE_FLAT_DEVICE_HIERARCHY unset") == 2, told.text
    assert done.code == 0, done.text
    assert "ranks 2, on cpu" in done.stdout
