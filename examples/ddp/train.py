"""A small data-parallel training in plain PyTorch: a network learns to tell six drawn shapes apart.

Nothing in here knows windlass. Ranks find each other through the usual variables (RANK, WORLD_SIZE, MASTER_ADDR, …),
and one process without any of them trains alone.

    python train.py                                      one process
    windlass run --ranks-per-node 2 train.py --steps 100     two ranks on this machine
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZE = 16  # images are SIZE x SIZE
SHAPES = ("disc", "ring", "square", "frame", "cross", "stripes")


def draw(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy pictures of shapes at random places and in random sizes, with the number of the shape."""
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    centre = 5 + 6 * torch.rand(count, 2, 1, 1, generator=generator)
    radius = 3 + 3 * torch.rand(count, 1, 1, generator=generator)
    grid = torch.arange(SIZE, dtype=torch.float32)
    dy, dx = grid.view(1, SIZE, 1) - centre[:, 0], grid.view(1, 1, SIZE) - centre[:, 1]
    circle, box = (dx.square() + dy.square()).sqrt(), torch.maximum(dx.abs() + 0 * dy, dy.abs() + 0 * dx)
    drawn = torch.stack(
        (
            circle < radius,
            (circle < radius) & (circle > radius - 1.5),
            box < radius,
            (box < radius) & (box > radius - 1.5),
            (torch.minimum(dx.abs() + 0 * dy, dy.abs() + 0 * dx) < 1.2) & (box < radius),
            (box < radius) & ((dx + 0 * dy + SIZE).floor() % 3 < 1.5),
        )
    ).float()
    images = drawn[labels, torch.arange(count)]
    return (images + 0.25 * torch.randn(count, SIZE, SIZE, generator=generator)).unsqueeze(1), labels


def build_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, len(SHAPES))),
    )


def pick_device(local_rank: int) -> tuple[torch.device, str]:
    """This rank's device and the library that moves its gradients."""
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device, "nccl"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        device = torch.device("xpu", local_rank % torch.xpu.device_count())
        torch.xpu.set_device(device)
        return device, "xccl"
    return torch.device("cpu"), "gloo"


def mean_over_ranks(value: torch.Tensor) -> float:
    total = value.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train and tell how it goes; only rank 0 talks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)  # the same start everywhere; the pictures differ by rank
    pictures = torch.Generator().manual_seed(args.seed * 1000 + rank)
    model = DistributedDataParallel(build_model().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    every = max(1, args.steps // 8)
    first = last = float("nan")
    began = shown_at = time.perf_counter()
    shown = 0
    for step in range(1, args.steps + 1):
        images, labels = draw(args.batch, pictures)
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (1, args.steps) or step % every == 0:
            last = mean_over_ranks(loss)
            first = last if step == 1 else first
            now = time.perf_counter()
            if rank == 0:
                rate = world * args.batch * (step - shown) / (now - shown_at)
                print(f"step {step:4d}  loss {last:6.3f}  {rate:8.0f} samples/s", flush=True)
            shown, shown_at = step, now
    if rank == 0:
        rate = world * args.batch * args.steps / (time.perf_counter() - began)
        print(f"done: loss {first:.3f} -> {last:.3f} in {args.steps} steps, {rate:.0f} samples/s, ranks: {world}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=128, help="pictures per rank and step")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device, backend = pick_device(int(os.environ.get("LOCAL_RANK", "0")))
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(backend, rank=rank, world_size=world)
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    where = f"{device}, cpus {cpus}, {torch.get_num_threads()} threads"
    print(f"rank {rank} of {world} on {socket.gethostname()}: {where}", flush=True)
    train(args, device)
    dist.barrier()  # nobody takes the group away while another rank is still in its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # A thread of gloo (torch 2.13) may still free its last collective. The interpreter's orderly exit then aborts the
    # process ("terminate called without an active exception"). All work is done here.
    sys.stdout.flush()
    os._exit(0)
