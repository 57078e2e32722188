"""Snapshots of a large state on one GPU, next to torch's own ways, in one run. Prints and writes one JSON record.

    python bench/snapshot_device.py FOLDER [--layers 20] [--disk FOLDER] [--record FILE] [--cpu]

State: LAYERS Linear(8192) with AdamW in fp32, 0.8 GB each. FOLDER should have room for three states (/dev/shm).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import torch.distributed.checkpoint as dcp

from windlass.runtime import Snapshot, staging
from windlass.runtime.store import io_threads


class Training:
    def __init__(self, layers: int, device: str) -> None:
        width = 512 if device == "cpu" else 8192
        self.device = device
        self.model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)]).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device != "cpu")
        self.x = torch.randn(16 if device == "cpu" else 4096, width, device=device)

    def step(self) -> float:
        began = time.perf_counter()
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model(self.x).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.wait()
        return time.perf_counter() - began

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.current_stream().synchronize()

    @property
    def size(self) -> int:
        return 3 * sum(p.numel() * p.element_size() for p in self.model.parameters())

    def tensors(self) -> list[Any]:
        parameters = list(self.model.parameters())
        states = [self.optimizer.state[parameter] for parameter in parameters]
        return [*parameters, *(state[name] for state in states for name in ("exp_avg", "exp_avg_sq"))]

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()}


def windlass(training: Training, folder: Path, *, device_copy: bool, saves: int = 3) -> dict[str, Any]:
    """Step through three saves: seconds that each blocks, step times while one is written, GB/s until committed."""
    spare = staging._DEVICE_SPARE
    staging._DEVICE_SPARE = spare if device_copy else 2.0
    snapshot = Snapshot(folder, model=training.model, optimizer=training.optimizer, every_s=1e9, keep=1)
    base = [training.step() for _ in range(20)]
    quiet, pinning, during, blocked, committed = statistics.median(base), [], [], [], []
    steps = iter(snapshot.resume(range(100_000)))
    loop = snapshot._loop
    assert loop is not None
    for _ in range(3):
        step = next(steps)
        training.step()
        snapshot.step(step)
    saver = loop._saver
    assert saver is not None
    began = time.perf_counter()
    while not saver._stager.is_pinned or len(pinning) < 40:
        step = next(steps)
        pinning.append(training.step())
        snapshot.step(step)
        if time.perf_counter() - began > (2 if training.device == "cpu" else 60):
            break
    kept: list[Any] = []
    for _ in range(saves):
        step = next(steps)
        training.step()
        kept = [tensor.clone() for tensor in training.tensors()]
        training.wait()
        began = time.perf_counter()
        loop._save(saver, step, background=True)
        training.wait()
        blocked.append(time.perf_counter() - began)
        while saver.under_way:
            step = next(steps)
            during.append(training.step())
            snapshot.step(step)
        committed.append(time.perf_counter() - began)
    loop.close()
    staging._DEVICE_SPARE = spare
    resume(training, folder)
    return {
        "equal": all(torch.equal(a, b) for a, b in zip(kept, training.tensors(), strict=True)),
        "blocked_s": blocked,
        "committed_s": committed,
        "committed_GBps": training.size / statistics.median(committed) / 1e9,
        "step_s": quiet,
        "step_ratio_pinning_worst": max(pinning) / quiet,
        "step_ratio_writing": statistics.mean(during) / quiet,
    }


def timed(work: Any, training: Training) -> float:
    began = time.perf_counter()
    work()
    if training.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def resume(training: Training, folder: Path) -> None:
    """Load the newest snapshot of the folder."""
    snapshot = Snapshot(folder, model=training.model, optimizer=training.optimizer, every_s=1e9)
    snapshot.resume(range(100_000))
    assert snapshot._loop is not None
    snapshot._loop.close()


def async_save(training: Training, target: Path) -> dict[str, Any]:
    """torch's own save in the background, staged through pinned memory: seconds that it blocks, and until it ends."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    pinned = training.device != "cpu"
    found: dict[str, Any] = {"blocked_s": [], "committed_s": []}
    for _ in range(2):
        stager = DefaultStager(StagingOptions(pinned, False, False, pinned))  # torch 2.11 cannot use one twice
        began = time.perf_counter()
        answer = dcp.async_save(training.state(), checkpoint_id=str(target), no_dist=True, async_stager=stager)
        saved = getattr(answer, "upload_completion", answer)
        if hasattr(answer, "staging_completion"):
            answer.staging_completion.result()
        training.wait()
        found["blocked_s"].append(time.perf_counter() - began)
        saved.result()
        found["committed_s"].append(time.perf_counter() - began)
    return found


def disk(training: Training, folder: Path) -> dict[str, Any]:
    """GB/s of a save until it is committed, next to as many `dd` as the save has threads, with fsync."""
    threads = io_threads()
    found: dict[str, Any] = {"threads": threads, "dd_GBps": [], "windlass_GBps": []}
    for turn in range(2):
        size = training.size // threads // (64 << 20)
        began = time.perf_counter()
        writers = [
            subprocess.Popen(
                ["dd", "if=/dev/zero", f"of={folder}/dd.{n}", "bs=64M", f"count={size}", "conv=fsync", "status=none"]
            )
            for n in range(threads)
        ]
        for writer in writers:
            writer.wait(300)
        found["dd_GBps"].append(threads * size * (64 << 20) / (time.perf_counter() - began) / 1e9)
        for n in range(threads):
            (folder / f"dd.{n}").unlink()
        own = folder / f"own{turn}"
        made = windlass(training, own, device_copy=True, saves=1)
        found["windlass_GBps"].append(made["committed_GBps"])
        shutil.rmtree(own)
    return found


def loads(training: Training, folder: Path, scratch: Path) -> dict[str, Any]:
    """Seconds until every tensor is on the device, each way from the page cache."""
    found: dict[str, Any] = {}

    found["windlass_s"] = [timed(lambda: resume(training, folder), training) for _ in range(3)]
    plain = scratch / "torch.pt"
    found["torch_save_s"] = timed(lambda: torch.save(training.state(), plain), training)

    def mapped() -> None:
        state = torch.load(plain, mmap=True, map_location="cpu", weights_only=True)
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optim"])

    found["torch_load_mmap_s"] = timed(mapped, training)
    plain.unlink()
    target = scratch / "dcp"
    found["dcp_save_s"] = timed(lambda: dcp.save(training.state(), checkpoint_id=str(target), no_dist=True), training)
    found["dcp_load_s"] = timed(lambda: dcp.load(training.state(), checkpoint_id=str(target), no_dist=True), training)
    found["dcp_async_save"] = async_save(training, target)
    shutil.rmtree(target)
    try:
        from safetensors.torch import load_file, save_file
    except ImportError:
        return found
    flat = {name: value.contiguous() for name, value in training.model.state_dict().items()}
    for index, state in enumerate(training.optimizer.state.values()):
        flat |= {f"{index}.{name}": value for name, value in state.items() if value.dim()}
    file = scratch / "s.safetensors"
    found["safetensors_save_s"] = timed(lambda: save_file(flat, file), training)
    found["safetensors_load_s"] = timed(lambda: load_file(file, device=training.device), training)
    file.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--disk", type=Path, help="a folder on a local disk")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    device = "cpu" if args.cpu else "cuda"
    training = Training(args.layers, device)
    record: dict[str, Any] = {"version": 1, "torch": torch.__version__, "python": platform.python_version()}
    record["device"] = "cpu" if args.cpu else torch.cuda.get_device_name()
    record["cpus"] = len(os.sched_getaffinity(0))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, device_copy in (("device_copy", True), ("no_device_copy", False)):
        folder = args.folder / name
        record[name] = windlass(training, folder, device_copy=device_copy)
        record["GB"] = training.size / 1e9
        print(name, record[name], flush=True)
        if name == "device_copy":
            record["load"] = loads(training, folder, args.folder)
            record["load"]["windlass_GBps"] = training.size / min(record["load"]["windlass_s"]) / 1e9
        shutil.rmtree(folder)
    if args.disk is not None:
        args.disk.mkdir(parents=True, exist_ok=True)
        record["disk"] = disk(training, args.disk)
    text = json.dumps(record, indent=1)
    print(text)
    if args.record:
        args.record.write_text(text + "\n")


if __name__ == "__main__":
    main()
