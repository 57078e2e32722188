"""Every example runs with the command that its README shows, at a small size."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import hydra_mpiexec, require, require_fuse, require_mpi, require_torch
from startup.machine import Clients
from startup.shared import Limits
from unit.cli.typed import windlass

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGES = (
    *("--rank={rank}", "--world-size={world_size}", "--gpu={local_rank}"),
    "--dist-url=tcp://{master_addr}:{master_port}",
)
pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _torch() -> None:
    require_torch()


def test_every_folder_is_in_the_list_and_has_a_readme_with_a_command() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__")
    assert [name for name in folders if f"]({name}/)" not in listed] == []
    assert [name for name in folders if "windlass run" not in (EXAMPLES / name / "README.md").read_text()] == []


def test_a_training_goes_on_from_its_own_snapshot_file(tmp_path: Path) -> None:
    words = ("run", "-r", "2", str(EXAMPLES / "multinode/multinode.py"))
    meet = ("--master_addr={master_addr}", "--master_port={master_port}")
    first = windlass(*words, "2", "1", *meet, cwd=tmp_path, timeout_s=200)
    assert first.code == 0, first.text
    assert "ranks 2" in first.stdout
    second = windlass(*words, "3", "1", *meet, cwd=tmp_path, timeout_s=200)
    assert "going on from epoch 2" in second.stdout
    assert re.findall(r"epoch (\d+)  ", second.stdout) == ["2"]


def test_a_run_that_loses_a_rank_ends_well_and_its_report_tells(tmp_path: Path) -> None:
    small = ("--steps", "30", "--width", "16", "--batch-size", "8", "--save-every", "5", "--lose-rank-at", "12")
    words = ("run", "-r", "2", "--restarts", "2", "--watch", "--run-dir", "r", str(EXAMPLES / "multinode/survive.py"))
    done = windlass(*words, *small, cwd=tmp_path, timeout_s=200)
    assert done.code == 0, done.text
    assert "this time from step" in done.stdout
    told = windlass("report", "r", cwd=tmp_path)
    assert "restarts:       1" in told.stdout
    assert "went-on: 1 of 2 starts failed" in told.stdout
    assert "was killed by SIGKILL" in told.stdout
    assert (tmp_path / "r" / "report.html").exists()


def test_images_are_classified_from_a_folder_by_a_script_that_wants_its_rank(tmp_path: Path) -> None:
    make = [sys.executable, str(EXAMPLES / "imagenet/make_data.py"), "data", "4", "16"]
    subprocess.run(make, cwd=tmp_path, check=True, timeout=60)
    words = ("run", "-r", "2", str(EXAMPLES / "imagenet/main.py"), *IMAGES, "data")
    done = windlass(*words, cwd=tmp_path, timeout_s=200)
    assert done.code == 0, done.text
    assert "images/s" in done.stdout


@pytest.mark.slow
def test_the_script_for_aurora_trains_on_cpu_ranks(tmp_path: Path) -> None:
    words = ("--ppd", "4", "--channels-last", "--tf32", "--steps", "2")
    done = windlass("run", "-r", "2", str(EXAMPLES / "aurora/train.py"), *words, cwd=tmp_path, timeout_s=200)
    assert done.code == 0, done.text
    assert "ranks 2, on cpu" in done.stdout


def _waits(folder: Path, run: str) -> float:
    """The share of their time that the ranks of a run waited for data, as the report has it."""
    told = windlass("report", "--json", run, cwd=folder)
    assert told.code == 0, told.text
    return float(json.loads(told.stdout)["wait_share"])


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.timeout(480)
def test_the_report_finds_the_input_bottleneck_and_staging_or_the_cache_cures_it(tmp_path: Path) -> None:
    """The shared file system is one whose servers take some milliseconds for each call."""
    require_fuse()
    original, memory = tmp_path / "original", tmp_path / "memory"
    make = [sys.executable, str(EXAMPLES / "imagenet/make_data.py"), str(original / "data"), "4", "32"]
    subprocess.run(make, check=True, timeout=60)
    subprocess.run(
        ["tar", "-C", str(original / "data"), "-cf", str(original / "data.tar"), "."], check=True, timeout=60
    )
    script = (str(EXAMPLES / "imagenet/main.py"), *IMAGES, "--batch-size", "8", "--epochs")
    words = (*script, "40")  # some seconds: shorter runs are over before they are sampled
    with Clients(tmp_path / "client", 1, {"shared": str(original)}, Limits(latency_s=0.004)) as clients:
        shared = clients.path(0) / "shared"
        staged = windlass("stage", str(shared / "data.tar"), "--to", str(memory), "--extract", cwd=tmp_path)
        assert staged.code == 0, staged.text
        partition = ("--cache", str(shared / "data"), "--cache-set", "placement=partition")
        ways = {"tree": (*script, "5", str(shared / "data")), "staged": (*words, str(memory / "data"))}
        ways["cached"] = (*partition, *words, "{view}" + str(shared / "data"))
        for name, way in ways.items():
            done = windlass("run", "-r", "2", "--watch", "--run-dir", name, *way, cwd=tmp_path, timeout_s=200)
            assert done.code == 0, done.text
    told = windlass("report", "tree", cwd=tmp_path).stdout
    assert "input-bound: ranks wait for data" in told
    assert "(`windlass stage`)" in told
    waits = {name: _waits(tmp_path, name) for name in ways}
    assert waits["tree"] > 0.2, waits
    assert waits["staged"] < waits["tree"] / 2, waits
    assert waits["cached"] < waits["tree"] / 2, waits
    compared = windlass("report", "staged", "--against", "tree", cwd=tmp_path).stdout
    assert "waits for data" in compared


@pytest.mark.mpi
@pytest.mark.parametrize("launcher", ["hydra", "openmpi"])
def test_a_script_that_knows_mpi_alone_sums_over_its_ranks(launcher: str, tmp_path: Path) -> None:
    require_mpi()
    env = {"PATH": f"{hydra_mpiexec().parent}:{os.environ['PATH']}"}
    if launcher == "openmpi":
        library = next(Path("/usr/lib").glob("*/libmpi.so.40"), None)
        require("openmpi", bool(library and shutil.which("mpirun.openmpi")), "no mpirun.openmpi and its library")
        env = {"PATH": os.environ["PATH"], "MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": str(library)}
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    words = ("run", "-r", "2", "--launcher", launcher, str(EXAMPLES / "allreduce/allreduce.py"))
    done = windlass(*words, cwd=tmp_path, env=env)
    assert done.code == 0, done.text
    assert "2 ranks: the sum is 1 everywhere" in done.stdout
