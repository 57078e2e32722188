"""Two ranks train like one: DDP and FSDP2 over gloo, as two real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from requirements import require_torch

require_torch()

from unit.bench.train.training import largest_distance  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[4]
TRAIN = str(ROOT / "bench" / "train_step.py")
SOURCE = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'bench'}"
DEADLINE_S = 180
COMMON = (
    "llm", "--model", "tiny", "--device", "cpu", "--sequence", "32", "--micro-batch", "2", "--warmup", "0",
    "--steps", "12", "--learning-rate", "3e-3",
)  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(ranks: int, out: Path, *arguments: str) -> dict[str, Any]:
    """Train on that many local ranks; the row of their record. Past the deadline all ranks are killed."""
    port = _free_port()
    processes = []
    for rank in range(ranks):
        env = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
        if ranks > 1:
            env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        argv = [sys.executable, TRAIN, *arguments, "--json", str(out)]
        processes.append(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=DEADLINE_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(text[-2000:] for text in said)
    (row,) = json.loads(out.read_text())["rows"]
    return dict(row)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One rank that does in four micro-steps what two ranks do in two."""
    return _run(1, tmp_path_factory.mktemp("alone") / "record.json", *COMMON, "--accumulation", "4")


@pytest.mark.parametrize(
    ("parallel", "precision", "tolerance"),
    [
        ("ddp", "fp32", 2e-5),
        ("ddp", "bf16", 1e-3),
        ("fsdp", "fp32", 2e-5),
        ("fsdp", "bf16", 2e-3),
        ("fsdp", "fp8", 4e-3),
    ],
)
def test_two_ranks_agree_with_one(
    alone: dict[str, Any], tmp_path: Path, parallel: str, precision: str, tolerance: float
) -> None:
    both = _run(
        2, tmp_path / "record.json", *COMMON, "--accumulation", "2", "--parallel", parallel, "--precision", precision
    )
    assert both["labels"]["ranks"] == 2
    one, two = alone["samples"], both["samples"]
    assert largest_distance(tuple(one["loss"]), tuple(two["loss"])) < tolerance
    assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=0.03 if precision != "fp32" else 1e-3)


def test_fsdp_with_checkpointing_agrees_too(alone: dict[str, Any], tmp_path: Path) -> None:
    both = _run(
        2, tmp_path / "r.json", *COMMON, "--accumulation", "2", "--parallel", "fsdp", "--checkpointing", "selective"
    )
    assert largest_distance(tuple(alone["samples"]["loss"]), tuple(both["samples"]["loss"])) < 2e-5


def test_resnet_runs_on_two_ranks(tmp_path: Path) -> None:
    row = _run(
        2, tmp_path / "r.json", "resnet", "--model", "resnet-tiny", "--device", "cpu", "--image", "32", "--batch", "8",
        "--steps", "12", "--warmup", "0", "--parallel", "ddp",
    )  # fmt: skip
    assert row["labels"]["ranks"] == 2
    assert row["samples"]["loss"][-1] < row["samples"]["loss"][0]


_EXCHANGE = """
import sys
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
"""


def test_gradients_sent_after_backward_are_the_mean_over_ranks() -> None:
    port = _free_port()
    base = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    argv = [sys.executable, "-c", _EXCHANGE]
    processes = [
        subprocess.Popen(argv, env=base | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=DEADLINE_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(text[-2000:] for text in said)


def test_ranks_without_a_parallel_mode_are_refused(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": SOURCE, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = subprocess.run([sys.executable, TRAIN, *COMMON], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--parallel ddp or fsdp" in done.stderr
