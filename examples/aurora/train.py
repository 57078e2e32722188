"""Data-parallel training in the manner of the site's guide: oneCCL, several ranks per tile, channels last, TF32.

On a machine without accelerators the same script trains on CPU ranks with gloo.

    windlass run --ranks-per-node 2 train.py --ppd 1 --channels-last --tf32
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def device_of(local_rank: int, ranks_per_device: int) -> torch.device:
    """The rank's tile. Where only one device is visible (`--devices one`), that is number 0."""
    if not torch.xpu.is_available():
        return torch.device("cpu")
    index = local_rank // ranks_per_device if torch.xpu.device_count() > 1 else 0
    torch.xpu.set_device(index)
    return torch.device("xpu", index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ppd", type=int, default=1, choices=(1, 2, 4), help="ranks per tile, each with its CCS")
    parser.add_argument("--channels-last", action="store_true", help="memory format that convolutions prefer there")
    parser.add_argument("--tf32", action="store_true", help="products of fp32 matrices in TF32 where the device has it")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = device_of(int(os.environ["LOCAL_RANK"]), args.ppd)
    dist.init_process_group("xccl" if device.type == "xpu" else "gloo")
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    memory = torch.channels_last if args.channels_last else torch.contiguous_format
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 1))
    # With several ranks per tile the model goes to the device after it is wrapped: wrapped there, it hangs.
    early = args.ppd == 1
    wrapped = DistributedDataParallel(model.to(device, memory_format=memory) if early else model)
    if not early:
        wrapped = wrapped.to(device, memory_format=memory)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    loss = torch.zeros(())
    for _ in range(args.steps):
        images = torch.rand(8, 3, 32, 32).to(device, memory_format=memory)
        loss = nn.functional.mse_loss(wrapped(images), images.mean(dim=(1, 2, 3)).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"done: loss {loss.item():.4f}, ranks {dist.get_world_size()}, on {device}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # A thread of gloo (torch 2.13) may still free its last collective. The interpreter's orderly exit then aborts the
    # process ("terminate called without an active exception"). All work is done here.
    sys.stdout.flush()
    os._exit(0)
