"""Ranks that start again in the place of failed ones, on this machine: same scripts, same step, same log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cluster.supervised import EVERY, SCRIPT, STEPS, reference
from requirements import require_torch
from unit.cli.typed import only_run, run_here, script, windlass

PARTS = ("detect", "end", "decide", "start", "import", "meet", "load", "first step")
WHERE = """
import json, os, resource, signal, sys, time
rank, start = int(os.environ["RANK"]), int(os.environ["WINDLASS_ATTEMPT"])
said = {"start": start, "script": os.getppid(), "cwd": os.getcwd(), "in": os.readlink("/proc/self/fd/0")}
said["cpus"], said["files"] = sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE)
said["environ"] = {name: value for name, value in os.environ.items() if name != "WINDLASS_ATTEMPT"}
print(json.dumps(said), flush=True)
open(f"{rank}-{start}", "w").close()
for _ in range(600):  # until both ranks have written their line
    if os.path.exists(f"{1 - rank}-{start}"):
        break
    time.sleep(0.05)
faults = sys.argv[1:]
if rank == 1 and start < len(faults):
    if faults[start] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if faults[start] == "script":
        os.kill(os.getppid(), signal.SIGKILL)
if start < len(faults):
    os.system("sleep 300 &")
    time.sleep(300)
"""


def said(folder: Path, rank: int) -> list[dict[str, object]]:
    log = only_run(folder) / "out" / "node-0000.log"
    lines = [line.partition(": ")[2] for line in log.read_text().splitlines() if line.startswith(f"{rank}: {{")]
    return [json.loads(line) for line in lines]


def test_a_rank_starts_again_with_the_same_script_variables_limits_and_log(tmp_path: Path) -> None:
    done = run_here("-r", "2", "--restarts", "2", str(script(tmp_path, WHERE)), "kill", cwd=tmp_path)
    assert done.code == 0, done.text
    for rank in (0, 1):
        first, second = said(tmp_path, rank)
        assert (first.pop("start"), second.pop("start")) == (0, 1)
        assert first == second
    run = only_run(tmp_path)
    parts = {path.name for path in (run / "attempt-1").iterdir()}
    assert parts == {"comm", "ends", "evidence", "out", "result.json", "verdict.json", "where"}
    kept = (run / "attempt-1" / "out" / "node-0000.log").read_text()
    assert kept.count('{"start": 0') == 2 and '{"start": 1' not in kept
    shown = windlass("logs", str(run), cwd=tmp_path).stdout
    assert '{"start": 1' in shown and '{"start": 0' not in shown
    assert "rank 1 on" in done.stderr and "was killed by SIGKILL" in done.stderr


def test_a_second_failure_without_a_snapshot_starts_a_new_step(tmp_path: Path) -> None:
    done = run_here("-r", "2", "--restarts", "3", str(script(tmp_path, WHERE)), "kill", "kill", cwd=tmp_path)
    assert done.code == 0, done.text
    assert [one["start"] for one in said(tmp_path, 0)] == [2]
    kept = [(only_run(tmp_path) / f"attempt-{n}" / "out" / "node-0000.log").read_text() for n in (1, 2)]
    assert kept[0].count('{"start": 0') == 2 and '{"start": 1' not in kept[0]
    assert kept[1].count('{"start": 1') == 2


def test_a_killed_rank_script_is_a_failure_that_starts_a_new_step(tmp_path: Path) -> None:
    done = run_here("-r", "2", "--restarts", "2", str(script(tmp_path, WHERE)), "script", cwd=tmp_path)
    assert done.code == 0, done.text
    assert [one["start"] for one in said(tmp_path, 0)] == [1]


@pytest.mark.torch
@pytest.mark.apart
@pytest.mark.timeout(400)
def test_forked_ranks_train_to_the_same_losses_bit_for_bit(tmp_path: Path) -> None:
    """Two forks, then a fork of nothing: the standby is killed with the rank, and fresh interpreters take over."""
    require_torch()
    (tmp_path / "marks").mkdir()
    faults = ("warm:8:1", "warm:14:0", "bare:20:1")
    words = [str(SCRIPT), str(tmp_path / "ckpt"), str(STEPS), "--losses", str(tmp_path / "losses")]
    words += ["--marks", str(tmp_path / "marks"), "--every-steps", str(EVERY)]
    words += [word for fault in faults for word in ("--fault", fault)]
    done = run_here("-r", "2", "--restarts", "3", *words, cwd=tmp_path, timeout_s=300)
    assert done.code == 0, done.text
    rows = [line.split() for line in (tmp_path / "losses").read_text().splitlines()]
    assert {int(step): loss for step, loss, _ in rows} == reference(2, tmp_path)
    assert len({(step, loss) for step, loss, _ in rows}) == STEPS
    run = only_run(tmp_path)
    log = (run / "out" / "node-0000.log").read_text()
    assert log.count("starts with a fresh interpreter: standby: [Errno 111] Connection refused") == 2
    assert len(list(run.glob("attempt-*"))) == len(faults)
    report = json.loads(windlass("report", "--json", str(run), cwd=tmp_path).stdout)
    for attempt in report["attempts"][: len(faults)]:
        assert sorted(attempt["recovery"]) == sorted(PARTS), attempt
    parents = {line.split()[-1] for line in (run / "attempt-3" / "where" / "0").read_text().splitlines()}
    assert len(parents) == 2 and os.getpid() not in parents
