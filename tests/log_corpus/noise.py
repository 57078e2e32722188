"""Logs for `explain-log`: real error lines inside the output of several ranks, and healthy logs.

The generator knows neither the rules nor their thresholds. The same seed gives the same log.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
Shape = Literal["srun", "torchrun", "openmpi", "files", "plain"]
SHAPES: tuple[Shape, ...] = ("srun", "torchrun", "openmpi", "files", "plain")
_EXCEPTION = re.compile(r"[\w.]+(?:Error|Exception|OutOfResources|Timeout): ?")


class Case(NamedTuple):
    """Lines of one public thread and what `explain-log` must say about them."""

    area: str
    at: str
    lines: tuple[str, ...]
    kind: str
    origin: str
    remedy: str
    by: str = "rank"

    @property
    def kept_aside(self) -> bool:
        """Three in ten, by the address alone: looked at once, after the rules were written."""
        return hashlib.sha256(self.at.encode()).digest()[0] % 10 < 3


class Log(NamedTuple):
    files: dict[str, bytes]
    subject: str | None
    """The rank that the first cause must name; empty for none; None where the lines carry a number of their own."""


def cases() -> list[Case]:
    found = []
    for path in sorted((HERE / "cases").glob("*.toml")):
        for row in _rows(path, "case"):
            found.append(Case(path.stem, **{**row, "lines": tuple(row["lines"])}))
    return found


def healthy() -> list[dict[str, Any]]:
    return _rows(HERE / "healthy.toml", "log")


def _rows(path: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads(path.read_text())[name]
    return rows


class _Timeline:
    """Lines with their time and rank. The rank of a launcher's line is None."""

    def __init__(self, rng: random.Random, ranks: int) -> None:
        self.rng, self.ranks = rng, ranks
        self.rows: list[tuple[float, int | None, str, bool]] = []

    def add(self, at: float, rank: int | None, text: str, *, traced: bool = False) -> None:
        self.rows.append((at, rank, text, traced))

    def block(self, at: float, rank: int | None, lines: list[str], *, traced: bool = False) -> None:
        for index, line in enumerate(lines):
            self.add(at + index * 0.001, rank, line, traced=traced)


def broken_log(case: Case, seed: int, shape: Shape | None = None) -> Log:
    """The log of a run that the case ended. Other ranks print progress, then fail because of it."""
    rng = random.Random(f"{case.at} {seed}")
    shape = shape or rng.choice(SHAPES)
    time = _Timeline(rng, rng.choice((2, 4, 8, 16)))
    culprit = rng.randrange(time.ranks)
    _start(time)
    _progress(time, 10.0, 20.0, rng.randint(3, 30))
    failed = 20.0 + rng.random()
    if case.by == "launcher":
        _consequences(time, failed, culprit)
        time.block(failed + rng.choice((-0.5, 2.5)), None, list(case.lines))
    else:
        traced = bool(_EXCEPTION.match(case.lines[0]) or _EXCEPTION.match(case.lines[-1]))
        time.block(failed, culprit, _raised(case.lines, rng) if traced else list(case.lines), traced=traced)
        _consequences(time, failed, culprit)
    _bystanders(time, failed, culprit)
    _end(time, failed + 3.0, culprit, shape)
    named = case.by != "launcher" and (shape in {"srun", "openmpi", "files"} or (shape == "torchrun" and traced))
    own_label = any(re.match(r"\[\d", line) for line in case.lines)
    return Log(_files(time, shape), None if own_label else f"rank {culprit}" if named else "")


def healthy_log(row: dict[str, Any], seed: int, shape: Shape | None = None) -> Log:
    """The log of a run that finished and printed these lines on the way, or as its last ones."""
    rng = random.Random(f"{row['name']} {seed}")
    shape = shape or rng.choice(SHAPES)
    time = _Timeline(rng, rng.choice((2, 4, 8)))
    _start(time)
    _progress(time, 10.0, 100.0, rng.randint(100, 200))
    at = 101.0 if row.get("last") else rng.uniform(5.0, 30.0)
    rank = None if row.get("by") == "launcher" else rng.randrange(time.ranks)
    time.block(at, rank, row["lines"])
    for one in range(time.ranks):
        time.add(102.0, one, "training finished, saved model.pt")
    return Log(_files(time, shape), "")


def _start(time: _Timeline) -> None:
    lines = (
        "[W1115 10:00:01.1 socket.cpp:200] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 97 - "
        "Address family not supported by protocol).",
        "/x/model.py:12: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
        "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00,  1.94s/it]",
        "loading 12,288 samples from /lus/data/train",
        "W1115 10:00:01.2 1234 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each "
        "process to be 1 in default",
    )
    for rank in range(time.ranks):
        for line in time.rng.sample(lines, time.rng.randint(0, 3)):
            time.add(time.rng.uniform(0.0, 9.0), rank, line)


def _progress(time: _Timeline, begin: float, end: float, steps: int) -> None:
    stamped = time.rng.random() < 0.5
    for rank in range(time.ranks):
        for step in range(steps):
            at = begin + (end - begin) * (step + time.rng.random()) / steps
            clock = f"2026-11-15 10:{int(at) // 60:02}:{int(at) % 60:02},123 INFO train.py:88 " if stamped else ""
            bar = f"\r{step:3}%|###   | {step}/100 [00:{step % 60:02}<01:00]" if time.rng.random() < 0.1 else ""
            time.add(at, rank, f"{clock}step {step} loss {2.5 - step / 100:.4f} lr 0.0003{bar}")


def _raised(lines: tuple[str, ...], rng: random.Random) -> list[str]:
    """The lines as the end of a Python traceback, where they do not begin with output of a library."""
    before = 0
    while before < len(lines) and not _EXCEPTION.match(lines[before]):
        before += 1
    trace = ["Traceback (most recent call last):"]
    for number in range(rng.randint(1, 5)):
        trace += [f'  File "/x/site-packages/lib{number}/engine.py", line {rng.randint(1, 999)}, in run', "    step()"]
    return [*lines[:before], *trace, *lines[before:]]


def _consequences(time: _Timeline, failed: float, culprit: int) -> None:
    """What the other ranks print because one is gone."""
    gloo = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:31"
    nccl = (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there "
        "was a network error, NCCL version 2.21.5"
    )
    traced = (
        [gloo],
        [
            nccl,
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        ],
        ["BrokenPipeError: [Errno 32] Broken pipe"],
        ["ConnectionResetError: [Errno 104] Connection reset by peer"],
        ["torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//worker"],
    )
    watchdog = (
        "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )
    for rank in range(time.ranks):
        at = failed + time.rng.uniform(0.2, 2.0)
        kind = time.rng.random()
        if rank == culprit or kind < 0.1:
            continue
        if kind < 0.7:
            time.block(at, rank, _raised(tuple(time.rng.choice(traced)), time.rng), traced=True)
        else:
            time.add(at, rank, watchdog.format(rank))


def _bystanders(time: _Timeline, failed: float, culprit: int) -> None:
    """Ranks that print a step before they notice, some of it between the lines of the culprit."""
    for rank in range(time.ranks):
        if rank != culprit:
            for _ in range(time.rng.randint(0, 3)):
                time.add(
                    failed + time.rng.uniform(-0.01, 0.02), rank, f"step 31 loss {time.rng.random():.4f} lr 0.0003"
                )


def _end(time: _Timeline, at: float, culprit: int, shape: Shape) -> None:
    """What the launcher prints when it ends the others."""
    lines = {
        "srun": [
            f"srun: error: nid001001: task {culprit}: Exited with exit code 1",
            "srun: Terminating StepId=4711.0",
            "slurmstepd: error: *** STEP 4711.0 ON nid001001 CANCELLED AT 2026-11-15T10:00:24 ***",
        ],
        "torchrun": [
            "W1115 10:00:24.626000 819010 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 819027 "
            "closing signal SIGTERM",
            "E1115 10:00:25.013000 819010 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
            f"local_rank: {culprit} (pid: 819025) of binary: /x/bin/python",
            "Traceback (most recent call last):",
            '  File "/x/bin/torchrun", line 8, in <module>',
            "    sys.exit(main())",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "============================================================",
            "train.py FAILED",
        ],
        "openmpi": ["mpiexec noticed that process rank 1 with PID 0 on node n2 exited on signal 15 (Terminated)."],
    }
    time.block(
        at, None, lines.get(shape, ["slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-15T10:00:24 ***"])
    )


def _files(time: _Timeline, shape: Shape) -> dict[str, bytes]:
    rows = sorted(time.rows, key=lambda row: row[0])
    if shape != "files":
        return {"job.log": _bytes(_labelled(rank, text, traced, shape) for _, rank, text, traced in rows)}
    files = {f"rank-{rank}.log": _bytes(text for _, one, text, _ in rows if one == rank) for rank in range(time.ranks)}
    return {**files, "launcher.log": _bytes(text for _, one, text, _ in rows if one is None)}


def _labelled(rank: int | None, text: str, traced: bool, shape: Shape) -> str:
    if rank is None or shape == "plain" or (shape == "torchrun" and not traced):
        return text
    return {"srun": f"{rank:>2}: ", "openmpi": f"[1,{rank}]<stderr>:"}.get(shape, f"[rank{rank}]: ") + text


def _bytes(lines: Iterator[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
