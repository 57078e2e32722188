"""Image classification from a folder of classes, with the command line of pytorch/examples' ImageNet script.

Like that script it wants to be told who it is: `--rank`, `--world-size`, `--dist-url`, `--gpu`. `--workers` and
`--batch-size` are those of the whole node, as there. Images are raw files of 32 x 32 x 3 bytes (`make_data.py` draws
some), so that nothing but torch is needed.

    windlass run --ranks-per-node 2 main.py --rank={rank} --world-size={world_size} --gpu={local_rank} \\
        --dist-url tcp://{master_addr}:{master_port} --epochs 1 DATA
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIZE = 32


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """`folder/CLASS/*.raw`; the label is the number of the class."""

    def __init__(self, folder: Path) -> None:
        classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.classes = classes
        self.files = [
            (path, label) for label, name in enumerate(classes) for path in sorted((folder / name).glob("*.raw"))
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        pixels = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        return pixels.view(SIZE, SIZE, 3).permute(2, 0, 1).float() / 255, label


def build_model(classes: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--dist-url", default="tcp://127.0.0.1:29500")
    parser.add_argument("--dist-backend", default=None)
    parser.add_argument("--batch-size", type=int, default=64, help="of the whole node")
    parser.add_argument("--workers", "-j", type=int, default=0, help="of the whole node")
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", args.gpu % torch.cuda.device_count()) if cuda else torch.device("cpu")
    backend = args.dist_backend or ("nccl" if cuda else "gloo")
    dist.init_process_group(backend, init_method=args.dist_url, rank=args.rank, world_size=args.world_size)
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    data = ImageFolder(args.data)
    if not data:
        raise SystemExit(f"no images in {args.data}: it should hold a folder for each class")
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, batch_size=max(1, args.batch_size // per_node), num_workers=args.workers // per_node, sampler=sampler
    )
    torch.manual_seed(1)
    model = DistributedDataParallel(build_model(len(data.classes)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start, waited, seen, loss = time.monotonic(), 0.0, 0, torch.zeros(())
        before = start
        for images, labels in loader:
            waited += time.monotonic() - before
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(images) * args.world_size
            before = time.monotonic()
        if args.rank == 0:
            took = time.monotonic() - start
            rate = f"{seen / took:.0f} images/s, {waited / took:.0%} of it waiting for data"
            print(f"epoch {epoch}: loss {loss.item():.3f}, {rate}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # A thread of gloo (torch 2.13) may still free its last collective. The interpreter's orderly exit then aborts the
    # process ("terminate called without an active exception"). All work is done here.
    sys.stdout.flush()
    os._exit(0)
