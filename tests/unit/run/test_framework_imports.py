"""What is read from a script: its frameworks, what their ranks find, and whether ranks would train alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from looping import each
from planning import plan_for
from unit.cli.typed import in_process, run_here
from windlass.model.plan import plan_from_json
from windlass.model.request import Request
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts
from windlass.run.script import read_script

SHOW = "import os, sys\nif len(sys.argv) > 2:\n    import MODULE\nprint(os.environ.get(sys.argv[1]))\n"


def _script(folder: Path, module: str) -> Path:
    path = folder / "train.py"
    path.write_text(SHOW.replace("MODULE", module))
    return path


def test_workers_of_tensorflow_know_each_other_and_their_own_number(tmp_path: Path) -> None:
    _script(tmp_path, "tensorflow")
    ended = run_here("-q", "-r", "2", "--show", "all", "train.py", "TF_CONFIG", cwd=tmp_path)
    assert ended.code == 0, ended.text
    said = {int(line[1]): json.loads(line[4:]) for line in ended.stdout.splitlines()}
    workers = said[0]["cluster"]["worker"]
    assert len(set(workers)) == 2
    assert said[1]["cluster"]["worker"] == workers
    assert [said[rank]["task"] for rank in (0, 1)] == [{"type": "worker", "index": rank} for rank in (0, 1)]


def test_a_config_of_the_user_wins(tmp_path: Path) -> None:
    _script(tmp_path, "tensorflow")
    ended = run_here("-q", "-r", "2", "train.py", "TF_CONFIG", cwd=tmp_path, env={"TF_CONFIG": "mine"})
    assert "mine" in ended.stdout


def test_a_module_beside_the_script_counts(tmp_path: Path) -> None:
    _script(tmp_path, "model")
    (tmp_path / "model.py").write_text("import flax\n")
    ended = run_here("-q", "-r", "2", "--show", "all", "train.py", "SLURM_PROCID", cwd=tmp_path)
    assert sorted(ended.stdout.split()) == ["0", "1", "[0]", "[1]"]


def test_one_rank_and_scripts_of_torch_are_left_alone(tmp_path: Path) -> None:
    _script(tmp_path, "jax")
    assert "None" in run_here("-q", "-r", "1", "train.py", "JAX_COORDINATOR_ADDRESS", cwd=tmp_path).stdout
    _script(tmp_path, "torch")
    assert "None" in run_here("-q", "-r", "2", "train.py", "JAX_COORDINATOR_ADDRESS", cwd=tmp_path).stdout


def test_workers_of_several_nodes_come_from_the_hosts_of_the_run(tmp_path: Path) -> None:
    """In the three forms that host files have; the part of the rank script runs in a real shell."""
    _script(tmp_path, "tensorflow")
    planned = in_process("plan", "--site", "perlmutter", "--nodes", "2", "-r", "2", "--json", "train.py", cwd=tmp_path)
    assert planned.code == 0, planned.text
    text = rank_script(plan_from_json(planned.stdout.encode()), JobFacts(run_dir=str(tmp_path), run_id="x"))
    begin = text.index("# All workers")
    part = text[begin : text.index("\ndone\n", begin) + 6]
    for line in ("{}\n", "{}:2\n", "{} slots=2\n"):
        (tmp_path / "hosts").write_text(line.format("nid1") + line.format("nid2"))
        head = f"WINDLASS_RUN_DIR={tmp_path} w_ranks_per_node=2 w_master_port=20000\n"
        said = subprocess.run(
            ["sh", "-c", f'{head}{part}\nprintf %s "$w_workers"'],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        assert json.loads(f"[{said.stdout}]") == ["nid1:20001", "nid1:20002", "nid2:20003", "nid2:20004"]


def test_explain_knows_the_variable(tmp_path: Path) -> None:
    _script(tmp_path, "jax")
    planned = in_process("plan", "--site", "lumi", "--nodes", "2", "--json", "train.py", cwd=tmp_path)
    (tmp_path / "plan.json").write_text(planned.stdout)
    said = in_process("explain", "JAX_COORDINATOR_ADDRESS", "plan.json", cwd=tmp_path)
    assert said.code == 0, said.text
    assert "jax.distributed.initialize" in said.stdout


ALONE = """
import argparse, torch
from torch import nn
model = nn.Linear(2, 2)
for _ in range(3):
    model(torch.ones(2)).sum().backward()
torch.save(model.state_dict(), "model.pt")
"""


def _planned(folder: Path, text: str, *words: str) -> set[str]:
    (folder / "train.py").write_text(text)
    done = in_process("plan", "--site", "lumi", *(words or ("--nodes", "2")), "--json", "train.py", cwd=folder)
    assert done.code == 0, done.text
    return {remark["kind"] for remark in json.loads(done.stdout).get("remarks", ())}


def test_ranks_that_would_each_train_alone_are_warned_of(tmp_path: Path) -> None:
    assert "no-process-group" in _planned(tmp_path, ALONE)
    (tmp_path / "model.py").write_text("import numpy\n")
    assert "no-process-group" in _planned(tmp_path, f"import model\n{ALONE}"), "a module that is known too"


def test_run_warns_before_the_ranks_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("if 0:\n" + "".join(f"    {line}\n" for line in ALONE.splitlines()))
    assert "joins no process group" in run_here("-r", "2", "train.py", cwd=tmp_path).stderr


@pytest.mark.slow
@pytest.mark.torch
@each(("guard", "told"), [("if True:", 1), ("if os.environ['RANK'] == '0':", 0)])
def test_a_watched_run_says_once_that_ranks_write_one_checkpoint(tmp_path: Path, guard: str, told: int) -> None:
    step = "optimizer = torch.optim.SGD(model.parameters())\nfor _ in range(3):\n    optimizer.step()\n"
    save = f'{step}{guard}\n    torch.save(model.state_dict(), "model.pt")\n'
    (tmp_path / "train.py").write_text("import os\n" + ALONE.replace(ALONE.splitlines()[-1], save))
    done = run_here("-r", "2", "--watch", "--python", sys.executable, "train.py", cwd=tmp_path)
    assert done.code == 0, done.text
    assert done.stderr.count("shared-file: ranks 0-1: save to the same file") == told, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert in_process("report", str(run), cwd=tmp_path).stdout.count("shared-file: ranks 0-1") == told


@each(
    "change",
    [
        "import torch.distributed as dist",
        "import os; rank = int(os.environ['RANK'])",
        "import accelerate",
        "from lightning import Trainer",
        "import transformers",
        "import deepspeed",
        "import horovod.torch",
        "from mpi4py import MPI",
        "import ray",
        "import jax",
        "import tensorflow",
        "import windlass",
        "import library_that_may_join",
        "parser = argparse.ArgumentParser(); parser.add_argument('--local_rank')",
    ],
)
def test_scripts_that_join_or_might_join_are_not(tmp_path: Path, change: str) -> None:
    assert "no-process-group" not in _planned(tmp_path, f"{change}\n{ALONE}")


def test_one_rank_other_programs_and_wanted_copies_are_not(tmp_path: Path) -> None:
    assert "no-process-group" not in _planned(tmp_path, ALONE, "--nodes", "1", "-r", "1")
    assert "no-process-group" not in _planned(tmp_path, ALONE, "--nodes", "2", "--with", "independent")
    assert "no-process-group" not in _planned(tmp_path, ALONE.replace(".backward()", ""))
    (tmp_path / "model.py").write_text("from torch.nn.parallel import DistributedDataParallel\n")
    assert "no-process-group" not in _planned(tmp_path, f"import model\n{ALONE}")


@each(
    ("site", "hosts"),
    [("aurora", "n1.hsn.cm.aurora.alcf.anl.gov n2.hsn.cm.aurora.alcf.anl.gov"), ("frontier", "n1 n2")],
)
def test_workers_of_tensorflow_have_the_names_of_the_fabric(tmp_path: Path, site: str, hosts: str) -> None:
    plan, _ = plan_for(site, "train.py", nodes=2, account="A", ranks_per_node=1, imports=frozenset({"tensorflow"}))
    (tmp_path / "hosts").write_text("n1.head.example:1\nn2\n" if site == "aurora" else "n1\nn2\n")
    script = rank_script(plan, JobFacts(run_dir=str(tmp_path), run_id="ab"))
    lines = script[script.index("# All workers of TensorFlow.") :].splitlines()
    loop = "\n".join(lines[1 : next(at for at, line in enumerate(lines) if line.startswith("w_workers="))])
    shell = f"WINDLASS_RUN_DIR={tmp_path}\n{loop}\necho $w_hosts"
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.strip() == hosts


@each(
    ("text", "starts"),
    [
        ("import ray\nray.init()\n", True),
        ("import ray\n\n@ray.remote\ndef f(): ...\n", True),
        ("from ray.train.torch import TorchTrainer\n", True),
        ("import ray.data\nds = ray.data.range(3)\n", True),
        ("import x_ray\nx_ray.init()\n", False),
        ("import ray\nprint(ray.__version__)\n", False),
        ("import ray, torch.distributed as d\nd.init_process_group()\nray.init()\n", False),
        ("# import ray\n# ray.init()\n", False),
    ],
)
def test_a_script_that_starts_ray_is_found_by_its_text(tmp_path: Path, text: str, starts: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    assert read_script(Request(command=("train.py",), kind="script", cwd=str(tmp_path))).starts_ray is starts
