"""examples/jax and examples/tensorflow: the real packages on CPUs, on one machine and on a real Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from looping import each
from requirements import examples_python, require_examples
from unit.cli.typed import windlass

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SAID = {"jax": r"process (\d) of {n}: {n} devices", "tensorflow": r"worker (\d): {n} replicas"}


def _command(name: str) -> tuple[str, ...]:
    return ("run", "--python", str(examples_python()), "--show", "all", "-q", str(EXAMPLES / name / "train.py"))


@each("name", [*SAID])
def test_two_ranks_of_this_machine(tmp_path: Path, name: str) -> None:
    require_examples()
    run, *words = _command(name)
    done = windlass(run, "-r", "2", *words, cwd=tmp_path, timeout_s=200)
    assert done.code == 0, done.text
    assert sorted(re.findall(SAID[name].format(n=2), done.stdout)) == ["0", "1"]


@pytest.mark.slurm
@each("name", [*SAID])
def test_four_nodes_of_a_real_slurm(slurm: SlurmCluster, tmp_path: Path, name: str) -> None:
    require_examples()
    run, *words = _command(name)
    with allocated(slurm, tmp_path, "-N4", "--exclusive") as job:
        done = job.windlass(run, "-r", "1", *words, timeout_s=250)
    assert done.code == 0, done.text
    assert sorted(re.findall(SAID[name].format(n=4), done.stdout)) == ["0", "1", "2", "3"]
