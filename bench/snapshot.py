"""What a snapshot costs a training run.

Three questions, each answered beside its own yardstick in the same run:
  step   `snapshot.step` where nothing is due, against a call of an empty method; on one rank and on two (gloo)
  save   how long a save of a model holds up training, against a plain `torch.save` of the same model to the same disk
  load   how long `resume` takes until the first step, against `torch.load` into the same model

    python bench/snapshot.py [--gigabytes 1] [--repeats 5] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CALLS = 200_000
BETWEEN = 100_000  # calls of `step` between two saves


def quartiles(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "n": len(ordered),
        "median": statistics.median(ordered),
        "low": ordered[0],
        "high": ordered[-1],
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }


class Empty:
    def step(self, step: int) -> None:
        return None


def timed_calls(thing: Any, first: int, calls: int) -> list[float]:
    """Microseconds of each call."""
    clock = time.perf_counter_ns
    spent = []
    for step in range(first, first + calls):
        began = clock()
        thing.step(step)
        spent.append((clock() - began) / 1000)
    return spent


def measure_step(folder: Path) -> dict[str, Any]:
    """Inside one rank: every call timed on its own, so the clock's own cost is in both columns."""
    import torch

    import windlass

    torch.set_num_threads(1)
    run = windlass.init()
    snapshot = windlass.Snapshot(folder, model=torch.nn.Linear(4, 4), every_s=1e6)
    steps = snapshot.resume(range(10**9))
    next(steps)
    timed_calls(snapshot, 0, 1000)  # the first agreements find the pace
    empty = timed_calls(Empty(), 0, CALLS)
    own = timed_calls(snapshot, 1000, CALLS)
    steps.close()  # type: ignore[attr-defined]
    quiet = sorted(own)[: int(len(own) * 0.95)]
    result = {
        "ranks": run.world_size,
        "rank": run.rank,
        "empty_us": quartiles(empty),
        "step_us": quartiles(own),
        "step_quiet_95_percent_us": quartiles(quiet),
        "step_mean_with_agreements_us": statistics.fmean(own),
        "agreement_us": quartiles([us for us in own if us > 20]) if any(us > 20 for us in own) else None,
    }
    run.shutdown()
    return result


def step_on(ranks: int, folder: Path) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    children = []
    for rank in range(ranks):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        env |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        argv = [sys.executable, __file__, "--inside", str(folder)]
        children.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    outputs = [child.communicate(timeout=300)[0] for child in children]
    result: dict[str, Any] = json.loads(outputs[0])
    return result


def make_model(gigabytes: float) -> Any:
    import torch

    layers = 16
    width = int((gigabytes * 1e9 / 4 / layers) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_()
    return model


def plain_save(model: Any, path: Path, *, sync: bool) -> float:
    import torch

    began = time.perf_counter()
    with path.open("wb") as file:
        torch.save(model.state_dict(), file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    spent = time.perf_counter() - began
    path.unlink()
    os.sync()
    return spent


def own_save(model: Any, folder: Path, saves: int) -> tuple[list[float], list[float]]:
    """Blocking seconds of each `step` that saves, and seconds until each snapshot is committed."""
    import windlass

    blocking, until_commit = [], []
    snapshot = windlass.Snapshot(folder, model=model, every_steps=BETWEEN, keep=1)
    steps = snapshot.resume(range(10**9))
    calls = 0  # since the last save began
    for _ in range(saves):
        spent = 0.0
        # A save that is due waits until the former one's leftovers are removed, so look for the one that began.
        while calls < BETWEEN or not any(folder.glob(".saving-*")):
            if calls > 2 * BETWEEN:
                raise SystemExit("no save began")
            began = time.perf_counter()
            snapshot.step(next(steps))
            spent = time.perf_counter() - began
            calls += 1
        calls = 0
        blocking.append(spent)
        while any(folder.glob(".saving-*")):
            time.sleep(0.005)  # training goes on meanwhile; the commit comes at the end of a later step
            snapshot.step(next(steps))
            calls += 1
            if time.perf_counter() - began > 120:
                raise SystemExit("the save did not end within two minutes")
        until_commit.append(time.perf_counter() - began)
        os.sync()
    steps.close()  # type: ignore[attr-defined]
    return blocking, until_commit


def measure_save(gigabytes: float, repeats: int, root: Path) -> dict[str, Any]:
    model = make_model(gigabytes)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    plain, synced, first, later, commits = [], [], [], [], []
    for number in range(repeats):
        plain.append(plain_save(model, root / "plain.pt", sync=False))
        synced.append(plain_save(model, root / "plain.pt", sync=True))
        blocking, until_commit = own_save(model, root / f"ckpt{number}", 4)
        first.append(blocking[0])
        later.extend(blocking[1:])
        commits.extend(until_commit)
        shutil.rmtree(root / f"ckpt{number}")
    return {
        "model_bytes": size,
        "torch_save_s": quartiles(plain),
        "torch_save_and_fsync_s": quartiles(synced),
        "snapshot_blocking_first_s": quartiles(first),
        "snapshot_blocking_later_s": quartiles(later),
        "snapshot_until_committed_s": quartiles(commits),
        "ratio_blocking_later_to_torch_save": statistics.median(later) / statistics.median(plain),
    }


def measure_load(gigabytes: float, repeats: int, root: Path) -> dict[str, Any]:
    """Warm page cache on both sides: what is compared is the work, not the disk."""
    import torch

    import windlass

    model = make_model(gigabytes)
    torch.save(model.state_dict(), root / "plain.pt")
    list(windlass.Snapshot(root / "ckpt", model=model).resume(range(1)))
    plain, own = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        model.load_state_dict(torch.load(root / "plain.pt", weights_only=True))
        plain.append(time.perf_counter() - began)
        began = time.perf_counter()
        steps = windlass.Snapshot(root / "ckpt", model=model).resume(range(2))
        own.append(time.perf_counter() - began)
        next(steps)
        steps.close()  # type: ignore[attr-defined]
    shutil.rmtree(root / "ckpt")
    (root / "plain.pt").unlink()
    return {"torch_load_s": quartiles(plain), "resume_with_check_s": quartiles(own)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--note", default="", help="kept in the record: what else the machine was doing, for example")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(measure_step(args.inside)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        root = Path(name)
        result = {
            "step_one_rank": step_on(1, root / "one"),
            "step_two_ranks": step_on(2, root / "two"),
            "save": measure_save(args.gigabytes, args.repeats, root),
            "load": measure_load(args.gigabytes, args.repeats, root),
        }
    import torch

    record = {
        "version": 1,
        "what": "bench/snapshot.py",
        "note": args.note,
        "repeats": args.repeats,
        "machine": {"cpus": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0]},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "result": result,
    }
    text = json.dumps(record, indent=1) + "\n"
    if args.json:
        args.json.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
