"""What a snapshot costs a training run.

Three questions, each answered beside its own yardstick in the same run:
  step   `snapshot.step` where nothing is due, against a call of an empty method; on one rank and on two (gloo). First
         call after call, then with steps of 5 ms between, so that the ranks' agreements (two a second) are in the mean
  save   how long a save of a model holds up training, against a plain `torch.save` of the same model to the same disk
  load   how long `resume` takes until the first step, against `torch.load` into the same model

    python bench/snapshot.py [--gigabytes 1] [--repeats 5] [--folder DIR] [--note TEXT] [--json FILE]
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
PACED = 2_000  # calls with a pause of PAUSE_S before each
PAUSE_S = 0.005
LIMIT_US = 20.0
BETWEEN = 100_000  # calls of `step` between two saves


def spread(samples: list[float], *, keep: bool = True) -> dict[str, Any]:
    """Median and range, and the samples themselves unless there are very many."""
    ordered = sorted(samples)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    made: dict[str, Any] = {
        "n": len(ordered),
        "median": statistics.median(ordered),
        "low": ordered[0],
        "high": ordered[-1],
        "p25": at(0.25),
        "p75": at(0.75),
        "p99": at(0.99),
    }
    return {**made, "samples": [round(sample, 6) for sample in samples]} if keep else made


class Empty:
    def step(self, step: int) -> None:
        return None


def timed_calls(thing: Any, first: int, calls: int, pause_s: float = 0.0) -> list[float]:
    """Microseconds of each call, with the clock's own."""
    clock = time.perf_counter_ns
    spent = []
    for step in range(first, first + calls):
        if pause_s:
            time.sleep(pause_s)
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
    run.barrier()
    empty_paced = timed_calls(Empty(), 0, 300, PAUSE_S)
    timed_calls(snapshot, 1000 + CALLS, 300, PAUSE_S)  # the pace follows the length of steps
    paced = timed_calls(snapshot, 1300 + CALLS, PACED, PAUSE_S)
    run.barrier()
    steps.close()  # type: ignore[attr-defined]
    result = {
        "ranks": run.world_size,
        "rank": run.rank,
        "empty_us": spread(empty, keep=False),
        "step_us": spread(own, keep=False),
        "share_of_calls_over_20_us": sum(us > LIMIT_US for us in own) / len(own),
        "empty_between_steps_of_5_ms_us": spread(empty_paced, keep=False),
        "steps_of_5_ms_us": spread(paced, keep=False),
        "steps_of_5_ms_mean_us": statistics.fmean(paced),
        "steps_of_5_ms_share_over_20_us": sum(us > LIMIT_US for us in paced) / len(paced),
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
        "torch_save_s": spread(plain),
        "torch_save_and_fsync_s": spread(synced),
        "snapshot_blocking_first_s": spread(first),
        "snapshot_blocking_later_s": spread(later),
        "snapshot_until_committed_s": spread(commits),
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
    return {"torch_load_s": spread(plain), "resume_with_check_s": spread(own)}


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
    load = os.getloadavg()
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
        "version": 2,
        "what": "bench/snapshot.py",
        "note": args.note,
        "date": time.strftime("%Y-%m-%d"),
        "repeats": args.repeats,
        "machine": {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "kernel": platform.release(),
            "load_before": load,
            "load_after": os.getloadavg(),
        },
        "python": platform.python_version(),
        "torch": torch.__version__,
        "result": result,
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(lines_of(result)))


def lines_of(result: dict[str, Any]) -> list[str]:
    """The figures for a person."""
    lines = []
    for name in ("step_one_rank", "step_two_ranks"):
        step = result[name]
        lines.append(
            f"{name}: {step['step_us']['median']:.2f} us (an empty call {step['empty_us']['median']:.2f}), p99 "
            f"{step['step_us']['p99']:.2f}; steps of 5 ms: median {step['steps_of_5_ms_us']['median']:.2f} "
            f"(empty {step['empty_between_steps_of_5_ms_us']['median']:.2f}), mean with agreements "
            f"{step['steps_of_5_ms_mean_us']:.2f}"
        )
    save, load = result["save"], result["load"]
    for name in ("torch_save_s", "torch_save_and_fsync_s", "snapshot_blocking_first_s", "snapshot_blocking_later_s"):
        lines.append(f"{name}: {save[name]['median']:.3f} ({save[name]['low']:.3f} to {save[name]['high']:.3f})")
    lines.append(f"blocking, later saves: {save['ratio_blocking_later_to_torch_save']:.2f} of a torch.save")
    lines.append(f"committed after {save['snapshot_until_committed_s']['median']:.2f} s")
    for name in ("torch_load_s", "resume_with_check_s"):
        lines.append(f"{name}: {load[name]['median']:.3f} ({load[name]['low']:.3f} to {load[name]['high']:.3f})")
    return lines


if __name__ == "__main__":
    main()
