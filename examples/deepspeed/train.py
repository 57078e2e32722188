"""A classifier of pictures trained by DeepSpeed, with the command line of DeepSpeed's own examples.

ZeRO's stage, batch and optimizer are in the configuration. DeepSpeed compiles an extension before the first step
(on CPUs its all-reduce over shared memory), and the script says how long that took.

    windlass run --ranks-per-node 2 train.py --deepspeed --deepspeed_config zero1.json --local_rank={local_rank}
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import deepspeed
import torch
from torch import nn

SIZE, CLASSES = 16, 4


def draw(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy pictures with one bright quarter, and the number of that quarter."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    images = 0.5 * torch.randn(count, 2, SIZE // 2, 2, SIZE // 2, generator=generator)
    images[torch.arange(count), labels // 2, :, labels % 2, :] += 1
    return images.reshape(count, SIZE * SIZE), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_rank", type=int, default=-1, help="as DeepSpeed's launcher would give it")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=256)
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    began = time.perf_counter()
    deepspeed.init_distributed()  # here the extension is compiled, or loaded where it was kept
    compiled_s = time.perf_counter() - began
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(SIZE * SIZE, args.width), nn.ReLU(), nn.Linear(args.width, CLASSES))
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    pictures = torch.Generator().manual_seed(engine.global_rank)
    first = last = 0.0
    for step in range(args.steps):
        images, labels = draw(engine.train_micro_batch_size_per_gpu(), pictures)
        loss = nn.functional.cross_entropy(engine(images.to(engine.device)), labels.to(engine.device))
        engine.backward(loss)
        engine.step()
        last = loss.item()
        first = last if step == 0 else first
    if engine.global_rank == 0:
        kept = sum(t.numel() for s in engine.optimizer.optimizer.state.values() for t in s.values() if t.dim())
        all_of_it = 2 * sum(p.numel() for p in model.parameters())  # Adam has two numbers per weight
        print(f"ZeRO-{engine.zero_optimization_stage()}, {engine.world_size} ranks: loss {first:.3f} -> {last:.3f}")
        print(f"this rank keeps {kept:,} of the optimizer's {all_of_it:,} numbers")
        print(f"starting torch.distributed and its extensions took {compiled_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an orderly exit of the interpreter; all work is done
