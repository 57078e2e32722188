"""A torch training by Ray Train: the script runs once, and Ray starts its workers on all nodes."""

from __future__ import annotations

import argparse
import os
from typing import Any

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train(config: dict[str, Any]) -> None:
    context = ray.train.get_context()
    torch.manual_seed(0)
    weights = torch.arange(4.0)
    model = prepare_model(torch.nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(context.get_world_rank())
    loss = torch.zeros(())
    for _ in range(config["steps"]):
        inputs = torch.randn(64, 4, generator=generator)
        loss = ((model(inputs).squeeze() - inputs @ weights) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.distributed.all_reduce(loss.detach())
    print(f"worker {context.get_world_rank()} of {context.get_world_size()}: loss {loss.item():.6f}", flush=True)
    ray.train.report({"loss": loss.item()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, help="default: one per node")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    ray.init()
    gpus = ray.cluster_resources().get("GPU", 0)
    scaling = ScalingConfig(num_workers=args.workers or len(ray.nodes()), use_gpu=gpus > 0)
    storage = RunConfig(storage_path=os.environ.get("WINDLASS_RUN_DIR"))
    TorchTrainer(train, train_loop_config={"steps": args.steps}, scaling_config=scaling, run_config=storage).fit()
    print(f"{scaling.num_workers} workers on {len(ray.nodes())} nodes have trained")


if __name__ == "__main__":
    main()
