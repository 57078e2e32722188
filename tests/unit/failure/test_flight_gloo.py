"""torch's flight record on request, from real ranks that wait for one that does not come."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import require_torch
from unit.runtime.ranks import environment, free_port
from waiting import wait_until
from windlass.run.failure.flight import last_collectives, missing

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SCRIPT = """
import sys, time, torch, windlass
torch.set_num_threads(1)
run = windlass.init(timeout_s=60)
for _ in range(3):
    torch.distributed.all_reduce(torch.ones(4))
print("three", flush=True)
if run.rank != 1:
    torch.distributed.all_reduce(torch.ones(4))
time.sleep(60)
"""


def test_the_record_of_a_waiting_rank_is_written_when_asked_for_and_names_the_missing_one(tmp_path: Path) -> None:
    port = free_port()
    ranks = []
    try:
        for rank in range(3):
            words = {"WINDLASS_RUN_DIR": str(tmp_path), "WINDLASS_HEARTBEAT": str(tmp_path / f"beat-{rank}")}
            argv = [sys.executable, "-c", SCRIPT]
            env = {**environment(rank, 3, port), **words}
            ranks.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True))
        assert [rank.stdout.readline() for rank in ranks if rank.stdout] == ["three\n"] * 3
        wanted = "rank 1 is missing from gloo:all_reduce number 4 (it did 3)"
        wait_until(lambda: asked(tmp_path) == wanted, timeout_s=30, what=wanted, every_s=0.5)
    finally:
        for child in ranks:
            child.kill()
            child.communicate()
    assert {one.rank: one.number for one in last_collectives(tmp_path / "flight")} == {0: 4, 1: 3, 2: 4}


def asked(folder: Path) -> str:
    """What the records say now, after asking every rank for a fresh one."""
    for rank in range(3):
        handle = os.open(folder / f"beat-{rank}.flight", os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, b"1")
        os.close(handle)
    return missing(folder / "flight", 3)[0]
