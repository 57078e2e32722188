"""Write shards of a made-up data set. Each shard appears whole, by a rename."""

import sys
from pathlib import Path

import torch

folder, count = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(exist_ok=True)
torch.manual_seed(0)
true = torch.randn(8, 1)
for number in range(count):
    features = torch.randn(256, 8)
    torch.save((features, features @ true), folder / f"{number}.part")
    (folder / f"{number}.part").rename(folder / f"{number}.pt")
print(f"wrote {count} shards", flush=True)
