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
