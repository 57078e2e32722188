"""What watching costs: the start-up hook per training step, and a refresh of the screen over 10,000 synthetic nodes.

The hook is measured in one process, in blocks that alternate between on and off: an optimizer's step over one small
tensor, and the next batch of a DataLoader. The refresh is what `windlass watch` does: read the file, find what is
worst, draw; beside it what the windlass of the run does: take the texts of all nodes, write the file and the history.
Then the processor time that recorder and sampler take of a step of 10 ms: the recorder with a clock that advances by
10 ms a step, so that it writes as often as in such a run, and the looks of a sampler at one and at eight real ranks.
    python bench/watch.py [--blocks 40] [--steps 2000] [--nodes 10000] [--repeats 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from windlass.diagnose.watch.demo import demo_job
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.fold import JobFiles, JobFold, interval_s
from windlass.diagnose.watch.job import Job, read_job
from windlass.diagnose.watch.screen import screen_text
from windlass.node.sampler import on_request, recorder, sampler, sitecustomize

_HOOKED = """
import json, sys, time
import torch
from torch.optim import optimizer as module
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter as iterator

blocks, steps = int(sys.argv[1]), int(sys.argv[2])
weight = torch.ones(16, requires_grad=True)
weight.grad = torch.ones(16)
optimizer = torch.optim.SGD([weight], lr=1e-9)
hooks = module._global_optimizer_post_hooks
kept, timed = dict(hooks), iterator.__next__
assert kept and hasattr(timed, "__wrapped__"), "the hook is not there"
data = list(range(steps + 8))

def block(on):
    hooks.clear()
    if on:
        hooks.update(kept)
    iterator.__next__ = timed if on else timed.__wrapped__
    batches = iter(DataLoader(data, batch_size=None))
    for _ in range(8):
        next(batches)
    begin = time.perf_counter(), time.process_time()
    for _ in range(steps):
        next(batches)
        optimizer.step()
    end = time.perf_counter(), time.process_time()
    return [(b - a) / steps * 1e6 for a, b in zip(begin, end)]

for on in (True, False):
    block(on)
print(json.dumps([[block(True), block(False)] if n % 2 else [block(False), block(True)][::-1] for n in range(blocks)]))
"""


def hook_cost(blocks: int, steps: int) -> list[list[list[float]]]:
    """Microseconds per step (elapsed, and of a processor) with the hook and without it, block by block."""
    with tempfile.TemporaryDirectory() as folder:
        for source in (sitecustomize, recorder, on_request):
            name = Path(str(source.__file__)).name
            target = name if source is sitecustomize else f"windlass_{name}"
            Path(folder, target).write_text(Path(str(source.__file__)).read_text())
        Path(folder, "steps").mkdir()
        environ = {**os.environ, "PYTHONPATH": folder, "WINDLASS_STEPS": f"{folder}/steps", "RANK": "0"}
        argv = [sys.executable, "-c", _HOOKED, str(blocks), str(steps)]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=900, check=True)
        return list(json.loads(done.stdout))


_STEP_S, _LOOKS = 0.010, 20
_RANK = """
import sys, time
sys.path.insert(0, sys.argv[1])
from windlass.node.sampler.recorder import Recorder
steps = Recorder(sys.argv[2])
while True:
    time.sleep(0.01)
    steps.step()
"""


def recorder_cost(blocks: int, steps: int) -> list[float]:
    """Processor microseconds per step of 10 ms, block by block: each waits for a batch, ends, and is written."""
    now = [0.0]
    with tempfile.TemporaryDirectory() as folder:
        record = recorder.Recorder(f"{folder}/0", clock=lambda: now[0])
        costs = []
        for _ in range(blocks):
            begin = time.process_time()
            for _ in range(steps):
                now[0] += _STEP_S
                record.waited(0.001)
                record.step()
            costs.append((time.process_time() - begin) / steps * 1e6)
        assert record.on, "the record has ended"
        return costs


def sampler_cost(count: int) -> list[float]:
    """Processor seconds of each look at a node with so many ranks that take steps of 10 ms, two seconds apart."""
    source = str(Path(str(sampler.__file__)).parents[3])
    with tempfile.TemporaryDirectory() as folder:
        for part in ("steps", "pids"):
            Path(folder, part).mkdir()
        ranks = []
        try:
            for rank in range(count):
                ranks.append(subprocess.Popen([sys.executable, "-c", _RANK, source, f"{folder}/steps/{rank}"]))
                Path(folder, "pids", str(rank)).write_text(str(ranks[-1].pid))
            looking = sampler.Sampler(folder)
            costs = []
            for _ in range(_LOOKS):
                time.sleep(interval_s(1))
                begin = time.process_time()
                looking.look()
                costs.append(time.process_time() - begin)
            return costs
        finally:
            for child in ranks:
                child.kill()
                child.wait()


def texts_of(job: Job) -> list[tuple[int, str]]:
    """What the samplers of such a job would send."""
    per_node: dict[int, tuple[list[Any], list[Any]]] = {number: ([], []) for number in range(len(job.nodes))}
    for device in job.devices:
        row = [device.index, device.busy, device.memory_bytes, device.memory_total_bytes, device.power_w]
        per_node[device.node][0].append([*row, device.temperature_c, device.clock_mhz, 0])
    for rank in job.ranks:
        row = [rank.rank, 0, rank.steps, rank.last_at, rank.step_ms, rank.wait_share, rank.comm_share, rank.cpu]
        per_node[rank.node][1].append([*row, rank.memory_bytes, rank.all_ms, rank.p95_ms, rank.all_wait_share, 0])
    texts = []
    for number, node in enumerate(job.nodes):
        figures = [node.at, node.cpu, node.memory_bytes, node.memory_limit_bytes, node.rx_bytes_s, node.tx_bytes_s]
        figures += [node.shared_read_bytes_s, node.shared_write_bytes_s, None, None, node.power_w]
        devices, ranks = per_node[number]
        texts += [(number, "N" + json.dumps(figures)), (number, "D" + json.dumps(devices))]
        texts.append((number, "R" + json.dumps(ranks)))
    return texts


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def screen_cost(nodes: int, repeats: int) -> dict[str, list[list[float]]]:
    """Seconds of each part (elapsed, and of a processor), turn by turn."""
    job = demo_job(nodes, time.time())
    texts = texts_of(job)
    seconds: dict[str, list[list[float]]] = {"take": [], "write": [], "read": [], "find": [], "draw": [], "refresh": []}
    with tempfile.TemporaryDirectory() as folder:
        fold = JobFold("bench", [node.host for node in job.nodes], 20.0)
        files = JobFiles(Path(folder), every_s=20.0)
        for turn in range(repeats):
            marks = [_clocks()]
            for number, text in texts:
                assert fold.take(number, text), text
            marks.append(_clocks())
            files.write(fold.job(job.at + 20.0 * turn))
            marks.append(_clocks())
            seen = read_job(Path(folder))
            marks.append(_clocks())
            assert seen is not None
            findings = find(seen)
            marks.append(_clocks())
            screen_text(seen, findings, width=80, height=24)
            marks.append(_clocks())
            for name, begin, end in zip(("take", "write", "read", "find", "draw"), marks, marks[1:], strict=False):
                seconds[name].append([late - early for early, late in zip(begin, end, strict=True)])
            seconds["refresh"].append([late - early for early, late in zip(marks[2], marks[-1], strict=True)])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pairs = hook_cost(args.blocks, args.steps)
    for at, kind in enumerate(("elapsed", "processor")):
        costs = sorted(on[at] - off[at] for on, off in pairs)
        spread = f"from {costs[0]:.2f} to {costs[-1]:.2f}, {len(costs)} pairs"
        print(f"hook: {statistics.median(costs):.2f} us per step, {kind} ({spread})")
    recording = recorder_cost(args.blocks, args.steps)
    recorder_us = statistics.median(recording)
    looks = {ranks: sampler_cost(ranks) for ranks in (1, 8)}
    for ranks, costs in looks.items():
        sampler_us = 1e6 * statistics.median(costs) * _STEP_S / interval_s(1) / ranks
        share = (recorder_us + sampler_us) / (1e6 * _STEP_S)
        print(f"processor time per rank and step of 10 ms, {ranks} ranks on the node: recorder {recorder_us:.1f} us,")
        print(f"    sampler {sampler_us:.1f} us, together {share:.2%} of the step")
    seconds = screen_cost(args.nodes, args.repeats)
    for name, values in seconds.items():
        for at, kind in enumerate(("elapsed", "processor")):
            column = [value[at] for value in values]
            print(f"{name:<8} {kind:<10} median {statistics.median(column):.3f} s, most {max(column):.3f} s")
    if args.json:
        record = {
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
            "nodes": args.nodes,
            "steps_per_block": args.steps,
            "hook_us": [{"on": on, "off": off} for on, off in pairs],
            "step_s": _STEP_S,
            "recorder_us": recording,
            "looks_s": looks,
            "columns": ["elapsed", "processor"],
            "seconds": seconds,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
