"""Sizes of the models, and requests that cannot be met."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from looping import each
from windlass.bench.train.options import LLAMAS, LlmOptions, ResNetOptions, llama_size
from windlass.errors import UsageError

SOURCE = Path(__file__).resolve().parents[4] / "src"


@each(
    ("name", "parameters"),
    [("llama2-7b", 6_738_415_616), ("llama2-13b", 13_015_864_320), ("llama3-8b", 8_030_261_248)],
)
def test_sizes_are_the_published_ones(name: str, parameters: int) -> None:
    assert llama_size(name).parameters == parameters


@pytest.mark.parametrize("name", sorted(LLAMAS))
def test_the_counted_parameters_are_those_of_the_model(name: str) -> None:
    from requirements import require_torch

    require_torch()
    import torch

    from windlass.bench.train.llama import Llama

    model = Llama(llama_size(name), vendor="cpu", compute_type=torch.bfloat16, checkpointing="none")
    assert sum(p.numel() for p in model.parameters()) == llama_size(name).parameters


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        LlmOptions(model="llama2-7B-hf")
    assert "llama2-7b" in str(caught.value.hint)


@each(
    ("kind", "wrong", "said"),
    [
        (LlmOptions, {"steps": 0}, "--steps is 0"),
        (LlmOptions, {"warmup": -1}, "--warmup is -1"),
        (LlmOptions, {"micro_batch": 0}, "--micro-batch is 0"),
        (ResNetOptions, {"model": "resnet5O"}, "unknown model"),
        (ResNetOptions, {"batch": 0}, "--batch is 0"),
        (ResNetOptions, {"image": 100}, "--image is 100"),
        (ResNetOptions, {"parallel": "fsdp"}, "ddp only"),
    ],
)
def test_impossible_requests_say_what_is_wrong(kind: type, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kind(**wrong)


def test_options_do_not_load_torch() -> None:
    program = (
        "import sys, windlass.bench.measure, windlass.bench.matmul.product, windlass.bench.train.options\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(SOURCE)}, timeout=60)
    assert done.returncode == 0
