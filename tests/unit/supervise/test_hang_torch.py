"""A rank that does not come to a collective: where everybody stands, by stacks and by torch's flight recorder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from requirements import require_torch
from unit.cli.typed import only_run, run_here

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(180)]
SCRIPT = Path(__file__).with_name("training.py")


def test_the_rank_that_sleeps_is_told_from_those_that_wait_for_it(tmp_path: Path) -> None:
    require_torch()
    (tmp_path / "marks").mkdir()
    words = ("--scheduler", "none", "-r", "3", "--restarts", "1", "--hang-after", "6", "--grace", "0.5")
    training = (str(SCRIPT), "ckpt", "12", "--losses", "losses", "--marks", "marks", "--fault", "wait:6:1")
    done = run_here(*words, *training, cwd=tmp_path, timeout_s=150)
    assert done.code == 0, done.text
    run = only_run(tmp_path)
    cause = json.loads((run / "attempt-1" / "verdict.json").read_text())["cause"]
    assert (cause["kind"], cause["rank"]) == ("hang", 1), done.stderr
    standing = (run / "attempt-1" / "evidence" / "standing.txt").read_text()
    assert "rank 1 in misbehave (training.py:" in standing
    assert "rank 1 is missing from gloo:all_reduce number" in standing
    assert sorted(path.name for path in (run / "attempt-1" / "flight").iterdir()) == ["rank_0", "rank_1", "rank_2"]


PLAIN = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
print("three", flush=True)
def load():
    time.sleep(600)
if dist.get_rank() == 1:
    load()
dist.all_reduce(torch.ones(4))
"""


def test_a_script_without_windlass_names_the_rank_its_place_and_the_collective(tmp_path: Path) -> None:
    require_torch()
    (tmp_path / "plain.py").write_text(PLAIN)
    done = run_here(
        "--scheduler", "none", "-r", "2", "--hang-after", "6", "--grace", "0.5", "plain.py", cwd=tmp_path, timeout_s=150
    )
    assert done.code != 0, done.text
    found = json.loads((only_run(tmp_path) / "verdict.json").read_text())
    assert (found["cause"]["kind"], found["cause"]["rank"]) == ("hang", 1), done.stderr
    assert "it is in load (plain.py:9)" in found["cause"]["reason"]
    assert "rank 0 in all_reduce (" in found["where"]
    assert "rank 1 is missing from gloo:all_reduce number 4 (it did 3)" in found["where"]
