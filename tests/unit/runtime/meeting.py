"""A script that only calls `windlass.init` and says what it got, one JSON line per rank."""

from __future__ import annotations

import json
import os
import sys

import windlass

run = windlass.init(timeout_s=float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)

import torch  # noqa: E402

total = torch.ones(1) * (run.rank + 1)
torch.distributed.all_reduce(total)
run.barrier(timeout_s=60)
words = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "backend", "launcher")
answer = {word: getattr(run, word) for word in words}
answer |= {"device": str(run.device), "sum": float(total), "recorder": os.environ.get("TORCH_FR_BUFFER_SIZE")}
sys.stdout.write(json.dumps(answer) + "\n")
sys.stdout.flush()
run.shutdown()
