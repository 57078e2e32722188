"""examples/benchmarks: commands of its README, and a table that a program printed on two nodes."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from requirements import require_torch
from unit.cli.typed import in_process, windlass

FOLDER = Path(__file__).parents[2] / "examples" / "benchmarks"
TABLE = "nccl-tests-2x4-gh200.txt"


def commands() -> list[list[str]]:
    """Every command of the README, without the words behind it."""
    lines = re.findall(r"^windlass (.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    return [shlex.split(re.split(r"   +", line)[0]) for line in lines]


def test_the_published_table_is_judged_and_compared(tmp_path: Path) -> None:
    shutil.copy(FOLDER / TABLE, tmp_path)
    shutil.copy(FOLDER / TABLE, tmp_path / "nccl.json")
    tried = [words for words in commands() if "guide.json" in words]
    assert len(tried) == 3
    report, reference, compare = (in_process(*words, cwd=tmp_path) for words in tried)
    assert report.code == 0, report.text
    assert "normal for 2 nodes of GH200: 159 GB/s busbw at 8 GiB" in reference.stdout, reference.text
    assert compare.code == 0, compare.text


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(4))
def test_each_benchmark_runs_here_as_printed(number: int, tmp_path: Path) -> None:
    require_torch()
    words = [words for words in commands() if "--ranks-per-node" in words][number]
    done = windlass(*words, "--python", sys.executable, cwd=tmp_path, timeout_s=300)
    assert done.code == 0, done.text


@pytest.mark.slurm
def test_a_table_printed_on_two_nodes_is_read_from_the_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    """nccl-tests needs devices: here its first rank prints what it printed on GH200."""
    program = tmp_path / "all_reduce_perf"
    program.write_text(f"#!/bin/sh\n[ $RANK != 0 ] || cat '{FOLDER / TABLE}'\n")
    program.chmod(0o755)
    (words,) = [words for words in commands() if "./build/all_reduce_perf" in words]
    words = [word.replace("./build/", "./") for word in words if word not in ("--container", "IMAGE")]
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.windlass(words[0], "-r", "4", *words[1:])
        assert done.code == 0, done.text
        report, reference = (job.windlass(*one) for one in commands() if one[2:3] == ["nccl"] or one[3:4] == ["nccl"])
    assert "imported from nccl" in report.stdout, report.text
    assert (tmp_path / "nccl.json").exists()
    assert "normal for 2 nodes of GH200" in reference.stdout, reference.text
