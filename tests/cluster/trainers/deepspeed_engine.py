"""A regression with DeepSpeed, which finds its newest checkpoint itself."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import deepspeed
import torch
from marks import end_step

CONFIG = {"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save_dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    torch.manual_seed(1)
    deepspeed.init_distributed("gloo")
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    if (args.save_dir / "latest").exists():
        engine.load_checkpoint(args.save_dir)
    for step in range(engine.global_steps + 1, args.steps + 1):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        if step % 5 == 0:
            engine.save_checkpoint(args.save_dir)
        end_step(step, loss.item())


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an orderly exit of the interpreter
