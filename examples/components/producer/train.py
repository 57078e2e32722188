"""Train on each shard as soon as it exists."""

import sys
import time
from pathlib import Path

import torch

folder, count = Path(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(count):
    deadline = time.monotonic() + 60
    while not (folder / f"{number}.pt").exists():
        assert time.monotonic() < deadline, f"shard {number} did not come within 60 s"
        time.sleep(0.05)
    features, targets = torch.load(folder / f"{number}.pt")
    loss = torch.nn.functional.mse_loss(model(features), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"trained on {count} shards, loss {loss.item():.4f}", flush=True)
