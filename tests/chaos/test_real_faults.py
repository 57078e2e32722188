"""Runs of real processes on this machine with one fault each: what `run`, `watch` and `report` say of them.

`WINDLASS_GOLDEN=write` makes every run several times and records what was named, for `docs/reference/verdicts.md`.
Without it only faults whose evidence does not depend on how busy the machine is are planted, once each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.command import only_run, windlass_argv, windlass_env
from unit.observe.corpus import FAULTS
from unit.observe.test_corpus import RECORDED
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.apart, pytest.mark.timeout(900)]
_RECORD = os.environ.get("WINDLASS_GOLDEN") == "write"
_ALWAYS = {"busy-node", "oversubscribed"}
"""True of a machine that other tests use at the same time."""


class Planted(NamedTuple):
    """How often it is run when it is recorded, its ranks, and the body of the script (`n` is the number of the run)."""

    times: int
    ranks: int
    body: str
    options: tuple[str, ...] = ()
    steady: bool = False
    """Its evidence does not depend on the machine's load."""


_LOOP = "for _ in range({count}):\n    time.sleep({step})\n    windlass.step(data_wait_s={wait})\n"
_STEPS = _LOOP.format(count="300 + 100 * n", step="0.01 / (n + 1)", wait="0.0001")
_PEER = "time.sleep(2)\nraise RuntimeError('[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]')\n"
_TORCH = """import torch
weight = torch.nn.Parameter(torch.ones(64, 64))
optimizer = torch.optim.SGD([weight], lr=LR)
def train(count, pause=0.01):
    for _ in range(count):
        time.sleep(pause)
        optimizer.zero_grad()
        (weight * weight).sum().backward()
        optimizer.step()
"""
_HANG = ("--hang-after", "4")
RUNS = {
    "": Planted(10, 1, _STEPS, steady=True),
    "slow input": Planted(4, 1, _LOOP.format(count=300, step=0.01, wait="0.006"), steady=True),
    "slow save": Planted(
        3,
        1,
        _TORCH.replace("LR", "0.0")
        + "class Slow:\n    def __reduce__(self):\n        time.sleep(1.0 + n)\n        return (int, ())\n"
        + "for _ in range(5):\n    train(30)\n    torch.save(Slow(), f'model{n}.pt')\ntrain(30)\n",
        steady=True,
    ),
    "slow evaluation": Planted(
        3,
        1,
        _TORCH.replace("LR", "0.0")
        + "class Rows(torch.utils.data.Dataset):\n    def __len__(self):\n        return 40 + 20 * n\n"
        "    def __getitem__(self, i):\n        return torch.ones(1)\n"
        "loader = torch.utils.data.DataLoader(Rows())\n"
        "for _ in range(5):\n    train(30)\n    for row in loader:\n        time.sleep(0.04)\ntrain(30)\n",
    ),
    "NaN": Planted(3, 1, _TORCH.replace("LR", "1e30") + "train(400, 0.03)\n", steady=True),
    "memory leak": Planted(
        2, 1, "kept = []\n" + _LOOP.format(count=450, step=0.1, wait="0.0") + "    kept.append(b'x' * (2 << 20))\n"
    ),
    "GIL held by a thread": Planted(
        4,
        2,
        "import threading\ndef spin():\n    while True:\n        sum(range(1000))\n"
        "if rank == 1:\n    threading.Thread(target=spin, daemon=True).start()\n"
        + _LOOP.format(count=400, step=0.02, wait="0.0"),
    ),
    "exception in one rank": Planted(4, 2, f"if rank == 1:\n    raise ValueError('bad batch')\n{_PEER}", steady=True),
    "one rank left early": Planted(3, 3, f"if rank == 1:\n    sys.exit(0)\n{_PEER}", steady=True),
    "out of memory in the host": Planted(
        3,
        2,
        "import resource\nif rank == 1:\n    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        f"    b'x' * (4 << 30)\n{_PEER}",
        steady=True,
    ),
    "full disk": Planted(
        4,
        2,
        f"if rank == 1:\n    with open('/dev/full', 'w') as file:\n        file.write('x' * 100000)\n{_PEER}",
        steady=True,
    ),
    "hang of one": Planted(
        3,
        3,
        "import threading\ndef all_reduce():\n    threading.Event().wait()\n"
        + _LOOP.format(count=60, step=0.05, wait="0.0")
        + "time.sleep(600) if rank == 1 else all_reduce()\n",
        _HANG,
    ),
    "SIGSTOP": Planted(
        3,
        3,
        "import signal\n"
        + _LOOP.format(count=60, step=0.05, wait="0.0")
        + "if rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(600)\n",
        _HANG,
    ),
    "more ranks than cores": Planted(3, 4, _LOOP.format(count=400, step=0.01, wait="0.0")),
    "two jobs on one node": Planted(
        3, 1, "end = time.time() + 14\nwhile time.time() < end:\n    sum(range(200000))\n    windlass.step()\n"
    ),
    "two ranks write one file": Planted(
        3,
        2,
        _TORCH.replace("LR", "0.0")
        + "for _ in range(4):\n    train(30, 0.03)\n    torch.save(weight, f'model{n}.pt')\ntrain(90, 0.03)\n",
        steady=True,
    ),
}


def _script(planted: Planted, number: int) -> str:
    return f"import os, sys, time, windlass\nn, rank = {number}, int(os.environ['RANK'])\n{planted.body}"


@contextlib.contextmanager
def _neighbours(fault: str) -> Iterator[None]:
    """Processes of another job on the cores of this one."""
    if fault != "two jobs on one node":
        yield
        return
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait(timeout=30)


def _windlass(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **windlass_env(folder), "NO_COLOR": "1"}
    return subprocess.run(windlass_argv(*words), env=environ, cwd=folder, capture_output=True, text=True, timeout=300)


def _judge(folder: Path, fault: str, number: int) -> tuple[bool, list[str]]:
    """Whether a run with this fault is judged right, and what was said."""
    planted = RUNS[fault]
    folder.mkdir(parents=True)
    (folder / "fault.py").write_text(_script(planted, number))
    words = ("--scheduler", "none", "--site", "workstation", "--watch", "-r", str(planted.ranks), "--cpu-bind", "none")
    with _neighbours(fault):
        done = _windlass(folder, "run", *words, *planted.options, "--", sys.executable, "fault.py")
    report = json.loads(_windlass(folder, "report", "--json").stdout)
    serious = {one["kind"]: one for one in report["findings"] if one["severity"] in {"error", "warning"}}
    said = [f"{one['kind']}: {one.get('subject', '')} {one['evidence']}" for one in report["findings"]]
    expected = FAULTS.get(fault)
    if expected is None:
        return done.returncode == 0 and not set(serious) - _ALWAYS, said
    if "cause" in expected.asked:
        verdict: dict[str, Any] = json.loads((only_run(folder).path / "verdict.json").read_text())
        cause = verdict["cause"]
        return cause["kind"] == expected.kind and cause.get("rank") == 1, [*said, json.dumps(cause)]
    others = set(serious) - _ALWAYS - {expected.kind}
    hit = next((one for one in report["findings"] if one["kind"] == expected.kind), None)
    right = hit is not None and (expected.culprit != "rank" or hit["facts"]["ranks"] == [1])
    return right and not others and done.returncode == 0, said


@pytest.mark.parametrize("fault", RUNS)
def test_a_planted_fault_is_named(fault: str, tmp_path: Path) -> None:
    if not _RECORD and not RUNS[fault].steady:
        pytest.skip("its evidence depends on the load of the machine: WINDLASS_GOLDEN=write records it")
    if "torch" in RUNS[fault].body:
        pytest.importorskip("torch")
    rows = []
    for number in range(RUNS[fault].times if _RECORD else 1):
        good, said = _judge(tmp_path / str(number), fault, number)
        rows.append({"fault": fault, "run": number, "good": good, "said": said})
    if _RECORD:
        kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else []
        rows = [row for row in kept if row["fault"] != fault] + rows
        RECORDED.write_text(json.dumps(rows, indent=1) + "\n")
    else:
        assert [row["said"] for row in rows if not row["good"]] == []


def test_a_run_that_was_interrupted_is_neither_a_failure_nor_fine(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(
        "import time, windlass\nwhile True:\n    time.sleep(0.01)\n    windlass.step()\n"
    )
    argv = windlass_argv(
        "run", "--scheduler", "none", "--site", "workstation", "--watch", "-r", "1", "--cpu-bind", "none"
    )
    environ = {**os.environ, **windlass_env(tmp_path)}
    with subprocess.Popen([*argv, "--", sys.executable, "steps.py"], env=environ, cwd=tmp_path) as child:
        wait_until(lambda: list((tmp_path / "runs").glob("*/watch/now.json")), timeout_s=60, what="a sample")
        time.sleep(4)
        child.send_signal(signal.SIGINT)
        child.wait(timeout=60)
    report = json.loads(_windlass(tmp_path, "report", "--json").stdout)
    kinds = {finding["kind"] for finding in report["findings"]}
    assert report["state"] == "stopped"
    assert not kinds & {"failure", "fine"}, report["findings"]
