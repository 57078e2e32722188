"""A small deterministic training, run as a real process by the tests: `python training.py FOLDER STEPS [options]`.

Writes one line `<step> <loss in hex>` per step to --losses on rank 0, so that two runs can be compared bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import signal
import time
from pathlib import Path

import torch
from torch import nn

import windlass

GLOBAL_BATCH = 12


class Position:
    """Where the data stands: samples seen by all ranks together."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("steps", type=int)
    parser.add_argument("--losses")
    parser.add_argument("--kind", choices=("plain", "ddp", "fsdp"), default="plain")
    parser.add_argument("--optimizer", choices=("adamw", "sgd", "momentum"), default="adamw")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--no-norm", action="store_true", help="no batch statistics: they depend on the ranks")
    parser.add_argument("--every-steps", type=int)
    parser.add_argument("--every-s", type=float)
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--fast")
    parser.add_argument("--blocking", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of sleep per step")
    parser.add_argument("--kill-self", help="SIGNAL:STEP[:RANK], sent at the end of that step, before snapshot.step")
    parser.add_argument("--bug", help="STEP:RANK at which user code raises")
    parser.add_argument("--shift-steps", action="store_true", help="every rank counts from its own number")
    parser.add_argument("--file-limit", help="BYTES:RANK, a limit on file size that appears after the first step")
    parser.add_argument("--wait-s", type=float, default=60.0)
    return parser.parse_args()


def build(args: argparse.Namespace, rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model: nn.Module = nn.Sequential(
        nn.Linear(8, args.width),
        nn.Identity() if args.no_norm else nn.BatchNorm1d(args.width),
        nn.ReLU(),
        nn.Dropout(args.dropout),
        nn.Linear(args.width, 1),
    )
    if args.kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        fully_shard(model, mesh=mesh)
    elif args.kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    makers = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    }
    random.seed(100 + rank)
    torch.manual_seed(100 + rank)
    return model, makers[args.optimizer](model.parameters())


def batch(seen: int, rank: int, world: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of the next global batch; which samples it holds depends on the position alone."""
    generator = torch.Generator().manual_seed(seen)
    data = torch.randn(GLOBAL_BATCH, 8, generator=generator)
    mine = data[rank * GLOBAL_BATCH // world : (rank + 1) * GLOBAL_BATCH // world]
    return mine + noise, mine.sum(1, keepdim=True).sin()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    run = windlass.init(timeout_s=60)
    model, optimizer = build(args, run.rank)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    position = Position()
    snapshot = windlass.Snapshot(
        args.folder,
        model=model,
        optimizer=optimizer,
        loader=position,
        also={"scheduler": scheduler},
        every_s=args.every_s,
        every_steps=args.every_steps,
        keep=args.keep,
        fast=args.fast,
        background=not args.blocking,
        wait_s=args.wait_s,
    )
    for step in snapshot.resume(range(args.steps)):
        noise = random.random() * args.dropout
        inputs, targets = batch(position.seen, run.rank, run.world_size, noise)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        position.seen += GLOBAL_BATCH
        report(args, run, step, loss.detach())
        time.sleep(args.pause)
        misbehave(args, run, step)
        snapshot.step(step + run.rank if args.shift_steps else step)
    if args.losses and run.is_main and args.kind != "fsdp":
        with Path(args.losses).open("a") as file:
            file.write(f"end {digest(model)}\n")
    run.shutdown()


def digest(model: nn.Module) -> str:
    """Parameters and buffers at the end, as the main rank has them."""
    whole = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole.update(name.encode() + tensor.numpy().tobytes())
    return whole.hexdigest()


def report(args: argparse.Namespace, run: windlass.runtime.Run, step: int, loss: torch.Tensor) -> None:
    if run.world_size > 1:
        torch.distributed.all_reduce(loss)
    if args.losses and run.is_main:
        with Path(args.losses).open("a") as file:
            file.write(f"{step} {float(loss / run.world_size).hex()}\n")


def misbehave(args: argparse.Namespace, run: windlass.runtime.Run, step: int) -> None:
    if args.kill_self:
        name, at, *only = args.kill_self.split(":")
        if int(at) == step and (not only or int(only[0]) == run.rank):
            os.kill(os.getpid(), getattr(signal, name))
    if args.file_limit and args.file_limit.split(":")[1] == str(run.rank):
        limit = int(args.file_limit.split(":")[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if args.bug and args.bug == f"{step}:{run.rank}":
        raise ValueError("a mistake in the user's code")


if __name__ == "__main__":
    main()
