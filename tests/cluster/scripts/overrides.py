"""A training in the manner of scripts that keep their settings as globals: a file and `--name=value` override them, and
RANK alone decides whether there are other processes. Written for the tests; works on CPUs."""

import os
import sys
from ast import literal_eval
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

out_dir = "out"
max_iters = 4
batch_size = 8
gradient_accumulation_steps = 4
learning_rate = 0.1
backend = "nccl"
device = "cuda"

names = {name for name, value in globals().items() if isinstance(value, (int, float, str)) and not name.startswith("_")}
for word in sys.argv[1:]:
    if not word.startswith("--"):
        exec(Path(word).read_text())
        continue
    name, _, text = word[2:].partition("=")
    assert name in names, f"unknown setting {name}"
    try:
        value = literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
    assert type(value) is type(globals()[name]), f"{name} is no {type(globals()[name])}"
    globals()[name] = value

ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    init_process_group(backend=backend)
    rank, local_rank, world_size = (int(os.environ[key]) for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    device = f"cuda:{local_rank}" if device.startswith("cuda") else device
    assert gradient_accumulation_steps % world_size == 0
    gradient_accumulation_steps //= world_size
else:
    rank, world_size = 0, 1
if rank == 0:
    Path(out_dir).mkdir(exist_ok=True)
torch.manual_seed(1337 + rank)
model = torch.nn.Linear(8, 1).to(device)
if ddp:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
truth = torch.arange(8.0).unsqueeze(1)
for _ in range(max_iters):
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last or not ddp else model.no_sync():
            x = torch.randn(batch_size, 8, device=device)
            loss = torch.nn.functional.mse_loss(model(x), x @ truth.to(device)) / gradient_accumulation_steps
            loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
weights = [parameter.detach().cpu() for parameter in model.parameters()]
print(
    f"rank {rank} of {world_size}: {max_iters} iterations, sum {sum(w.sum().item() for w in weights):.6f}", flush=True
)
if rank == 0:
    torch.save(weights, Path(out_dir) / "ckpt.pt")
if ddp:
    destroy_process_group()
