"""examples/finetune: formulas and data here; the Trainer itself where transformers is installed (`make test-all`)."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from requirements import examples_python, require_examples, require_torch
from unit.cli.typed import windlass
from windlass.bench.measure import flops_6n, flops_causal, flops_palm

FOLDER = Path(__file__).parents[2] / "examples" / "finetune"
SMALL = ("--steps", "4", "--batch-size", "2", "--block-size", "32")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module. It asks transformers for nothing until it trains."""
    require_torch()
    for name in ("accelerate", "transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    spec = importlib.util.spec_from_file_location("finetune", FOLDER / "finetune.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_guides_samples_per_second_are_its_tflops_and_the_exact_ones(script: ModuleType) -> None:
    shape = SimpleNamespace(num_hidden_layers=32, hidden_size=4096)
    tokens_per_s = 11.45 * 4096 / 8
    lines = script.tflops_lines(shape, 7_000_000_000, tokens_per_s, 4096)
    assert lines[0].startswith("246.2")
    exact = [float(line.split()[0]) for line in script.tflops_lines(shape, 6_738_415_616, tokens_per_s, 4096)]
    size = {"layers": 32, "width": 4096, "sequence": 4096}
    tokens = 1_000_000
    counted = (
        flops_6n(6_738_415_616, tokens),
        flops_palm(6_738_415_616, tokens, **size),
        flops_causal(6_738_415_616, tokens, **size),
    )
    assert exact == pytest.approx([work / tokens * tokens_per_s / 1e12 for work in counted], rel=1e-6)
    assert round(exact[1], 1) == 274.8


def test_blocks_of_text_are_the_same_for_the_same_index_whoever_asks(script: ModuleType) -> None:
    data = script.Reviews(4, 48, None)
    again = script.Reviews(4, 48, None)
    assert [data[n]["input_ids"].tolist() for n in range(4)] == [again[n]["input_ids"].tolist() for n in range(4)]
    assert data[0]["input_ids"].shape == (48,)
    assert data[0]["input_ids"].tolist() != data[1]["input_ids"].tolist()


def engine_of(text: str) -> str:
    """Which engine trained, over how many ranks."""
    found = re.search(r"(\d+ ranks by \w+): [\d,]+ tokens/s each", text)
    return found[1] if found else text


@pytest.mark.slow
def test_a_model_is_fine_tuned_here_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    require_examples()
    words = ("run", "-r", "2", "--python", str(examples_python()), str(FOLDER / "finetune.py"), *SMALL)
    first = windlass(*words, "--save-steps", "4", cwd=tmp_path, timeout_s=400)
    assert first.code == 0, first.text
    assert engine_of(first.stdout) == "2 ranks by multi_cpu"
    assert (tmp_path / "train-output" / "checkpoint-4").is_dir()
    longer = windlass(*words, "--save-steps", "4", "--steps", "8", "--num-workers", "1", cwd=tmp_path, timeout_s=400)
    assert longer.code == 0, longer.text
    losses = re.findall(r"'epoch': '([\d.]+)'", longer.stdout)
    assert float(losses[0]) > 0.5, "the first half was not trained again"


@pytest.mark.slow
@pytest.mark.slurm
def test_a_model_is_fine_tuned_on_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    require_examples()
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        words = ("--python", str(examples_python()), "-r", "1", str(FOLDER / "finetune.py"), *SMALL)
        done = job.windlass("run", *words, timeout_s=500)
    assert done.code == 0, done.text
    assert engine_of(done.stdout) == "2 ranks by multi_cpu"


@pytest.mark.slow
def test_deepspeed_and_gradient_checkpointing_are_really_used(tmp_path: Path, compiled: str) -> None:
    require_examples()
    more = ("--deepspeed", str(FOLDER / "zero1.json"), "--gradient-checkpointing")
    words = ("run", "-r", "2", "--keep-caches", compiled, "--python", str(examples_python()))
    done = windlass(*words, str(FOLDER / "finetune.py"), *SMALL, *more, cwd=tmp_path, timeout_s=800)
    assert done.code == 0, done.text
    assert engine_of(done.stdout) == "2 ranks by deepspeed"
