"""Two ranks train like one: DDP and FSDP2 over gloo, as two real processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cluster.slurm import free_ports
from forking import Forked
from requirements import require_torch

require_torch()

from unit.bench.train.training import largest_distance  # noqa: E402
from windlass.bench.rank import World  # noqa: E402
from windlass.bench.train import parallel  # noqa: E402
from windlass.bench.train.device import find_device  # noqa: E402
from windlass.errors import UsageError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 300
COMMON = {
    "model": "tiny", "device": "cpu", "sequence": 32, "micro_batch": 2, "warmup": 0, "steps": 12, "learning_rate": 3e-3,
}  # fmt: skip
LLM = {**COMMON, "accumulation": 2}
RESNET = {"model": "resnet-tiny", "device": "cpu", "image": 32, "batch": 8, "steps": 12, "warmup": 0, "parallel": "ddp"}
_EXCHANGE = """
import torch
import torch.distributed as dist
from torch import nn
from fast_resnet.exchange import FlatGradients
dist.init_process_group("gloo")
rank = dist.get_rank()
def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5).to(torch.bfloat16))
def run(made, images):
    return made[3](made[2](made[1](made[0](images))).to(torch.bfloat16)).float().square().mean()
ours = model(rank).to(memory_format=torch.channels_last)
exchange = FlatGradients(list(ours.parameters()), dist.get_world_size())
exchange.make_equal()
reference = model(0)
for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
    torch.testing.assert_close(a.contiguous(), b)
parts = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(7 + one)) for one in range(2)]
run(ours, parts[rank]).backward()
exchange.gather(); exchange.average(); exchange.give_back()
for part in parts:
    (run(reference, part) / 2).backward()
for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
    assert a.grad.stride() == a.stride()
    torch.testing.assert_close(a.grad.contiguous(), b.grad, rtol=2e-2, atol=2e-3)
dist.destroy_process_group()
"""
# What each pair of ranks trains, one after the other in the same two processes: to import torch takes longer.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp fp32": ("llm", {**LLM, "parallel": "ddp", "precision": "fp32"}),
    "ddp bf16": ("llm", {**LLM, "parallel": "ddp", "precision": "bf16"}),
    "fsdp fp32": ("llm", {**LLM, "parallel": "fsdp", "precision": "fp32"}),
    "fsdp bf16": ("llm", {**LLM, "parallel": "fsdp", "precision": "bf16"}),
    "fsdp fp8": ("tuned llm", {**LLM, "parallel": "fsdp", "precision": "fp8"}),
    "tuned ddp": ("tuned llm", {**LLM, "parallel": "ddp", "precision": "bf16"}),
    "fsdp selective": ("llm", {**LLM, "parallel": "fsdp", "checkpointing": "selective"}),
    "resnet": ("resnet", RESNET),
    "tuned resnet": ("tuned", RESNET),
    "exchange": ("program", {"text": _EXCHANGE}),
}
_RANK = """
import json, os, sys
import torch
from fast_llama.loop import FastLlmOptions, train_fast_llm
from fast_resnet.loop import FastResNetOptions, train_fast_resnet
from windlass.bench.train.loop import train_llm
from windlass.bench.train.options import LlmOptions, ResNetOptions
from windlass.bench.train.resnet import train_resnet
torch.set_num_threads(1)
loops = {"llm": (LlmOptions, train_llm), "resnet": (ResNetOptions, train_resnet),
         "tuned": (FastResNetOptions, train_fast_resnet), "tuned llm": (FastLlmOptions, train_fast_llm)}
for name, port, kind, values in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(port)
    if kind == "program":
        exec(values["text"])
        print("done", json.dumps([name, 2, [], []]), flush=True)
        continue
    options, train = loops[kind]
    result = train(options(**values))
    print("done", json.dumps([name, result.ranks, result.losses, result.gradient_norms]), flush=True)
"""


Curves = dict[str, tuple[int, tuple[float, ...], tuple[float, ...]]]


def _train(runs: dict[str, tuple[str, dict[str, Any]]], script: Path) -> Curves:
    """Number of ranks, losses and gradient norms of each run. Past the deadline both ranks are killed."""
    ports = free_ports(len(runs))
    asked = [(name, port, *run) for (name, run), port in zip(runs.items(), ports, strict=True)]
    script.write_text(_RANK)
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "bench")))
    common = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    argv = (str(script), json.dumps(asked))
    ranks = [Forked(argv, common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=DEADLINE_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(text[-2000:] for text in said)
    lines = [json.loads(line.removeprefix("done ")) for line in said[0].splitlines() if line.startswith("done ")]
    return {name: (count, tuple(losses), tuple(norms)) for name, count, losses, norms in lines}


@pytest.fixture(scope="module")
def alone() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """One rank that does in four micro-steps what two ranks do in two: losses and gradient norms."""
    from unit.bench.train.training import short_run

    result = short_run(**{**COMMON, "accumulation": 4})
    return result.losses, result.gradient_norms


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Curves:
    return _train(RUNS, tmp_path_factory.mktemp("ranks") / "rank.py")


@pytest.mark.parametrize(
    ("run", "tolerance"),
    [
        ("ddp fp32", 2e-5),
        ("ddp bf16", 1e-3),
        ("fsdp fp32", 2e-5),
        ("fsdp bf16", 2e-3),
        ("fsdp fp8", 4e-3),
        ("tuned ddp", 1e-3),
        ("fsdp selective", 2e-5),
    ],
)
def test_two_ranks_agree_with_one(
    alone: tuple[tuple[float, ...], tuple[float, ...]], both: Curves, run: str, tolerance: float
) -> None:
    ranks, losses, norms = both[run]
    assert ranks == 2
    assert largest_distance(alone[0], losses) < tolerance
    exact = run.endswith(("fp32", "selective"))
    assert norms == pytest.approx(alone[1], rel=1e-3 if exact else 0.03)


@pytest.mark.parametrize("run", ["resnet", "tuned resnet"])
def test_resnet_runs_on_two_ranks(both: Curves, run: str) -> None:
    ranks, losses, _ = both[run]
    assert ranks == 2
    assert losses[-1] < losses[0]


def test_gradients_sent_after_backward_are_the_mean_over_ranks(both: Curves) -> None:
    assert both["exchange"][0] == 2, "the program compares them itself"


def test_ranks_without_a_parallel_mode_are_refused() -> None:
    two = World(rank=0, size=2, local_rank=0, local_size=2, rendezvous=None)
    with pytest.raises(UsageError) as caught, parallel.process_group(two, "none", find_device("cpu")):
        pass
    assert caught.value.hint == "use --parallel ddp or fsdp"
