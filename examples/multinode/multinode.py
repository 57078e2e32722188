"""Data-parallel training with a snapshot file, in plain PyTorch: what tutorials of multi-node training begin with.

Nothing in here knows windlass. The command line is the one that Frontier's guide uses: epochs, how often to save, and
the address and port where ranks meet. A run that is started again goes on from its snapshot.

    windlass run --ranks-per-node 2 multinode.py 20 5 --master_addr={master_addr} --master_port={master_port}
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points in twenty dimensions and a value that depends on them, the same in every rank."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.rand(count, 20, generator=generator)
        self.targets = self.inputs.square().sum(dim=1, keepdim=True) / 20

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class Trainer:
    """Trains for some epochs; rank 0 saves every few of them."""

    def __init__(self, device: torch.device, batch_size: int, save_every: int, snapshot: Path) -> None:
        self.device, self.save_every, self.snapshot = device, save_every, snapshot
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
        self.first_epoch = 0
        if snapshot.exists():
            saved = torch.load(snapshot, map_location=device, weights_only=True)
            model.load_state_dict(saved["model"])
            self.first_epoch = saved["epochs"]
            if dist.get_rank() == 0:
                print(f"going on from epoch {self.first_epoch} of {snapshot}", flush=True)
        self.model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data = Samples(2048)
        self.loader = DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data))

    def train(self, epochs: int) -> float:
        loss = torch.zeros(())
        for epoch in range(self.first_epoch, epochs):
            self.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.mse_loss(self.model(inputs.to(self.device)), targets.to(self.device))
                loss.backward()
                self.optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}  loss {loss.item():.4f}  steps {len(self.loader)}", flush=True)
                if (epoch + 1) % self.save_every == 0:
                    self._save(epoch + 1)
        return loss.item()

    def _save(self, epochs: int) -> None:
        part = self.snapshot.with_suffix(".part")
        torch.save({"model": self.model.module.state_dict(), "epochs": epochs}, part)
        part.replace(self.snapshot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--master_addr", default=os.environ.get("MASTER_ADDR", "127.0.0.1"))
    parser.add_argument("--master_port", default=os.environ.get("MASTER_PORT", "29500"))
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"))
    args = parser.parse_args()
    os.environ.update(MASTER_ADDR=args.master_addr, MASTER_PORT=str(args.master_port))
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    devices = torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % devices) if devices else torch.device("cpu")
    dist.init_process_group("nccl" if devices else "gloo")
    loss = Trainer(device, args.batch_size, args.save_every, args.snapshot).train(args.total_epochs)
    if dist.get_rank() == 0:
        print(f"done: loss {loss:.4f}, ranks {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # A thread of gloo (torch 2.13) may still free its last collective. The interpreter's orderly exit then aborts the
    # process ("terminate called without an active exception"). All work is done here.
    sys.stdout.flush()
    os._exit(0)
