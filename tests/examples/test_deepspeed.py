"""examples/deepspeed: ZeRO-1 and ZeRO-2 by the real DeepSpeed on CPUs, where it is installed (`make test-all`)."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from requirements import examples_python, require_examples
from unit.cli.typed import in_process, windlass

FOLDER = Path(__file__).parents[2] / "examples" / "deepspeed"


def command() -> list[str]:
    """The first run of the README, with the places of its files in full."""
    line = re.findall(r"^windlass (run .*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)[0]
    words = [str(FOLDER / word) if (FOLDER / word).is_file() else word for word in shlex.split(line)]
    return ["run", "--python", str(examples_python()), *words[1:]]


def test_the_configurations_differ_in_the_stage_alone() -> None:
    first, second = (json.loads((FOLDER / f"zero{stage}.json").read_text()) for stage in (1, 2))
    assert (first["zero_optimization"].pop("stage"), second["zero_optimization"].pop("stage")) == (1, 2)
    assert first == second


def test_deepspeeds_words_reach_the_script_and_its_extensions_are_kept(tmp_path: Path) -> None:
    """As a plan for a machine, which needs no DeepSpeed."""
    words = [word for word in command()[3:] if word not in ("--ranks-per-node", "2")]
    done = in_process("plan", "--site", "lumi", "--nodes", "2", *words, cwd=tmp_path)
    assert done.code == 0, done.text
    said = " ".join(done.stdout.split())
    assert "--deepspeed --deepspeed_config" in said
    assert "--local_rank={local_rank}" in said
    assert re.search(r"TORCH_EXTENSIONS_DIR=\S*WINDLASS_CACHE_DIR\S*/extensions", said)


def kept_extension(folder: Path) -> float:
    """When the extension that was kept was compiled."""
    with tarfile.open(folder / "kept" / "caches.tar") as kept:
        (found,) = (one for one in kept.getmembers() if one.name.endswith("deepspeed_shm_comm.so"))
    return float(found.mtime)


def seconds(text: str) -> float:
    found = re.search(r"extensions took ([\d.]+) s", text)
    assert found, text
    return float(found[1])


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1500)
def test_zero_1_and_2_train_and_the_second_run_compiles_nothing(tmp_path: Path) -> None:
    require_examples()
    first = windlass(*command(), cwd=tmp_path, timeout_s=900)
    assert first.code == 0, first.text
    assert "ZeRO-1, 2 ranks" in first.stdout
    made = kept_extension(tmp_path)
    words = [word.replace("zero1.json", "zero2.json") for word in command()]
    second = windlass(*words, cwd=tmp_path, timeout_s=500)
    assert second.code == 0, second.text
    assert "ZeRO-2, 2 ranks" in second.stdout
    assert seconds(second.stdout) < seconds(first.stdout), "loading is not compiling"
    assert kept_extension(tmp_path) == made


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.timeout(1500)
def test_zero_1_trains_on_two_nodes(slurm: SlurmCluster, tmp_path: Path, compiled: str) -> None:
    require_examples()
    words = [{"2": "1", "kept": compiled}.get(word, word) for word in command()]
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.windlass(*words, timeout_s=900)
    assert done.code == 0, done.text
    assert "ZeRO-1, 2 ranks" in done.stdout
