"""A small deterministic training with snapshots, and faults on request: `training.py FOLDER STEPS [options]`.

Rank 0 appends `<step> <loss in hex> <time>` to --losses at each step. A fault happens once for each time it is named:
a mark in --marks says that it has been. `--fault kill:20:1` kills rank 1 at step 20, `stop` stops it, `raise` raises,
`wait` sleeps, `torn` kills it in the middle of a save, `corrupt` destroys the newest snapshot and then kills it,
`warm` waits until the node has a standby process and then kills it, `bare` kills the standby, too, `limit` lets all
its later saves fail by a limit on file size, `fill` fills the file system of the snapshots, `free` frees it again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch

import windlass

GLOBAL_BATCH = 24


class Position:
    """Where the data stands: samples seen by all ranks together."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("steps", type=int)
    parser.add_argument("--losses", required=True)
    parser.add_argument("--marks")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--every-steps", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fast", type=Path, help="a folder per node is made in it, for partner copies")
    parser.add_argument("--times", help="file for the moments at which rank 0 had imported torch and met the others")
    return parser.parse_args()


def batch(seen: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of the next global batch."""
    generator = torch.Generator().manual_seed(seen)
    data = torch.randn(GLOBAL_BATCH, 8, generator=generator)
    mine = data[rank * GLOBAL_BATCH // world : (rank + 1) * GLOBAL_BATCH // world]
    return mine, mine.sum(1, keepdim=True).sin()


def mean_gradients(model: torch.nn.Module, world: int) -> None:
    if world > 1:
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad /= world


def fill(path: Path) -> None:
    """Until the file system takes no more, to the last page."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def wait_for_standby(*, kill: bool) -> None:
    """Until the standby process of each node can fork. All nodes of the tests are one machine."""
    folder = Path(os.environ["WINDLASS_HEARTBEAT"]).parent
    nodes = list(folder.parent.glob(f"{folder.name.rpartition('.')[0]}.*"))
    for _ in range(600):
        if all((node / "standby.socket").exists() for node in nodes):
            break
        time.sleep(0.1)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if kill and bytes(folder / "standby.py") in words and os.getpid() != int(path.parent.name):
                os.kill(int(path.parent.name), signal.SIGKILL)


def misbehave(args: argparse.Namespace, rank: int, step: int) -> None:
    for at, fault in enumerate(args.fault):
        kind, when, who = fault.split(":")
        if int(when) > step or int(who) != rank:
            continue
        mark = Path(args.marks) / f"{at}.{kind}"
        saving = list(Path(args.folder).glob(".saving-*"))
        if mark.exists() or (kind == "torn" and not saving) or (kind != "torn" and int(when) != step):
            continue
        mark.write_text(f"{time.time():.6f} {os.getpid()}\n")
        print(f"rank {rank} at step {step}: {kind}", flush=True)
        if kind == "corrupt":
            newest = max(Path(args.folder).glob("step-*"))
            file = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
            file.write_bytes(file.read_bytes()[:-8] + b"nonsense")
        if kind == "fill":
            fill(Path(args.folder).with_name("filler"))
        if kind == "free":
            Path(args.folder).with_name("filler").unlink()
        if kind == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        if kind in {"warm", "bare"}:
            wait_for_standby(kill=kind == "bare")
            mark.write_text(f"{time.time():.6f} {os.getpid()}\n")
        if kind in {"kill", "torn", "corrupt", "warm", "bare"}:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "raise":
            raise ValueError("a mistake in the user's code")
        if kind == "wait":
            time.sleep(3600)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    imported = time.time()
    run = windlass.init(timeout_s=60)
    if args.times and run.is_main:
        with Path(args.times).open("a") as file:
            file.write(f"{imported:.6f} {time.time():.6f}\n")
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    position = Position()
    more = {"fast": args.fast / os.environ["SLURMD_NODENAME"], "buddy": True} if args.fast else {}
    snapshot = windlass.Snapshot(
        args.folder, model=model, optimizer=optimizer, loader=position, every_steps=args.every_steps, wait_s=60, **more
    )
    for step in snapshot.resume(range(args.steps)):
        inputs, targets = batch(position.seen, run.rank, run.world_size)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        mean_gradients(model, run.world_size)
        optimizer.step()
        position.seen += GLOBAL_BATCH
        whole = loss.detach().clone()
        if run.world_size > 1:
            torch.distributed.all_reduce(whole)
        if run.is_main:
            with Path(args.losses).open("a") as file:
                file.write(f"{step} {float(whole / run.world_size).hex()} {time.time():.6f}\n")
        time.sleep(args.pause)
        misbehave(args, run.rank, step)
        snapshot.step(step)
    run.shutdown()
    print(f"rank {run.rank} is done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
