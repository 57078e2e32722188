"""A regression with Megatron's arguments, its folder of checkpoints and its handler of SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from marks import end_step

TRACKER = "latest_checkpointed_iteration.txt"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--save-interval", type=int, default=5)
    parser.add_argument("--train-iters", type=int, default=30)
    parser.add_argument("--exit-signal-handler", action="store_true")
    return parser.parse_args()


def save(args: argparse.Namespace, step: int, model: Any, optimizer: Any) -> None:
    folder = args.save / f"iter_{step:07d}" / "mp_rank_00"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save((model.state_dict(), optimizer.state_dict()), folder / "model_optim_rng.pt")
        (args.save / TRACKER).write_text(str(step))
    dist.barrier()


def main() -> None:
    args = parse()
    asked: list[int] = []
    if args.exit_signal_handler:
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    done = 0
    if args.load and (args.load / TRACKER).exists():
        done = int((args.load / TRACKER).read_text())
        states = torch.load(args.load / f"iter_{done:07d}" / "mp_rank_00" / "model_optim_rng.pt")
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
    for step in range(done + 1, args.train_iters + 1):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told = torch.tensor([len(asked)])
        dist.all_reduce(told)
        if step % args.save_interval == 0 or told.item():
            save(args, step, model, optimizer)
        end_step(step, loss.item())
        if told.item():
            print("exiting program after receiving SIGTERM.", flush=True)
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
