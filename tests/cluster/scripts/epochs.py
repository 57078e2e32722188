"""A training in the manner of tutorials for several nodes: torchrun's variables, a sampler for each rank, a snapshot
that a second start goes on from. Written for the tests; works on CPUs."""

import argparse
import os
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, loader: DataLoader, save_every: int, path: Path) -> None:
        self.rank, self.local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        self.loader, self.save_every, self.path = loader, save_every, path
        self.first = 0
        model = torch.nn.Linear(20, 1)
        if path.exists():
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["model"])
            self.first = snapshot["epochs"]
            print(f"goes on after {self.first} epochs", flush=True)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def train(self, epochs: int) -> None:
        for epoch in range(self.first, epochs):
            self.loader.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            print(f"[{self.local_rank}/{self.rank}] epoch {epoch}, {len(self.loader)} steps", flush=True)
            if self.local_rank == 0 and self.rank == 0 and (epoch + 1) % self.save_every == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs": epoch + 1}, self.path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=32, type=int)
    args = parser.parse_args()
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 20), torch.randn(256, 1))
    loader = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data))
    Trainer(loader, args.save_every, Path("snapshot.pt")).train(args.total_epochs)
    destroy_process_group()


main()
