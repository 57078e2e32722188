"""The same kind of training with two additions, `windlass.init` and `windlass.Snapshot`: it survives losing a rank.

`--lose-rank-at STEP` kills the last rank there, once, as a dying node would: the run goes on from the newest snapshot.

    windlass run --ranks-per-node 2 --restarts 2 --watch survive.py --steps 400 --lose-rank-at 250
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import windlass


def batch_of(step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of one rank at one step, made from their numbers: the same after a restart."""
    inputs = torch.rand(size, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs, inputs.square().sum(dim=1, keepdim=True) / 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--lose-rank-at", type=int, metavar="STEP")
    args = parser.parse_args()

    run = windlass.init()
    torch.manual_seed(1)
    layers = (
        nn.Linear(20, args.width),
        nn.ReLU(),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, 1),
    )
    model = nn.Sequential(*layers).to(run.device)
    wrapped = DistributedDataParallel(model) if run.world_size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    folder = Path(os.environ.get("WINDLASS_RUN_DIR", ".")) / "snapshots"
    snapshot = windlass.Snapshot(folder, model=model, optimizer=optimizer, every_steps=args.save_every)

    first, loss = None, torch.zeros(())
    for step in snapshot.resume(range(args.steps)):
        first = step if first is None else first
        inputs, targets = batch_of(step, run.rank, args.batch_size)
        loss = nn.functional.mse_loss(wrapped(inputs.to(run.device)), targets.to(run.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        snapshot.step(step)
        if run.rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1:4d}  loss {loss.item():.5f}", flush=True)
        if step == args.lose_rank_at and first == 0 and run.rank == run.world_size - 1 > 0:
            print(f"rank {run.rank} dies now, at step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    if run.rank == 0:
        print(f"done: loss {loss.item():.5f} after {args.steps} steps, this time from step {first}", flush=True)
    run.shutdown()


if __name__ == "__main__":
    main()
