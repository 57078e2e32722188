"""A regression with accelerate, with the arguments of its complete example."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from marks import end_step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, default=".")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpointing_steps", type=int, default=5)
    parser.add_argument("--resume_from_checkpoint", type=Path)
    args = parser.parse_args()
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    points = torch.randn(512, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05), loader)
    done = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        done = int(args.resume_from_checkpoint.name.removeprefix("step_"))
    for step, (x,) in enumerate(accelerator.skip_first_batches(loader, done), done + 1):
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % args.checkpointing_steps == 0:
            accelerator.save_state(args.output_dir / f"step_{step}")
        end_step(step, loss.item())
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an orderly exit of the interpreter
