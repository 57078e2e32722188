"""Ranks that ended well without ever having met are told of, and others are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from requirements import require_torch
from unit.cli.typed import run_here, script

pytestmark = pytest.mark.timeout(120)
WARNING = "ranks never met"

ALONE = """
import time
def main(together=False):
    if together:
        import torch.distributed
    time.sleep(1.5)
main()
"""
TOGETHER = """
import datetime, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
dist.barrier()
dist.destroy_process_group()
"""
OWN_PORT = """
import os, socket, time  # not with torch.distributed
with socket.socket() as mine:
    mine.bind(("127.0.0.1", 0))
    mine.listen()
    time.sleep(1.5)
"""


def test_ranks_of_a_script_that_could_train_together_and_never_met_are_told_of(tmp_path: Path) -> None:
    script(tmp_path, ALONE)
    ended = run_here("-r", "2", "place.py", cwd=tmp_path, timeout_s=60)
    assert ended.code == 0, ended.text
    assert WARNING in ended.stderr
    (result,) = tmp_path.glob("runs/*/result.json")
    assert WARNING in json.loads(result.read_text())["remarks"][0]


@pytest.mark.parametrize(
    ("text", "ranks"), [(ALONE, "1"), (ALONE.replace("torch.distributed", "json"), "2"), (OWN_PORT, "2")]
)
def test_work_that_shows_no_wish_to_be_one_job_is_left_alone(tmp_path: Path, text: str, ranks: str) -> None:
    script(tmp_path, text)
    ended = run_here("-r", ranks, "place.py", cwd=tmp_path, timeout_s=60)
    assert ended.code == 0, ended.text
    assert WARNING not in ended.stderr


@pytest.mark.torch
def test_ranks_that_met_for_a_moment_have_met(tmp_path: Path) -> None:
    require_torch()
    script(tmp_path, TOGETHER)
    ended = run_here("-r", "2", "place.py", cwd=tmp_path, timeout_s=100)
    assert ended.code == 0, ended.text
    assert WARNING not in ended.stderr
