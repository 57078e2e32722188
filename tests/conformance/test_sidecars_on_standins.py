"""What runs beside the ranks, on a PBS machine with PALS and on a Flux machine: agents that keep a run alive and
find a hang. Every node step there has to start while the ranks hold their nodes."""

from __future__ import annotations

import json
import sys

from conformance.test_windlass_on_standins import OVER, Machine, machine
from windlass.schedulers.base import JobState

__all__ = ["machine"]

FAILS_ONCE = """
import os, sys, time
from pathlib import Path
seen = Path("seen." + os.environ["RANK"])
first = not seen.exists()
seen.touch()
if first and os.environ["RANK"] == "2":
    print("transient trouble", flush=True)
    os.kill(os.getpid(), 9)
if first:
    time.sleep(120)
print("finished in the second attempt", flush=True)
"""
HANGS = """
import os, time
print("up", flush=True)
if os.environ["RANK"] == "3":
    time.sleep(300)
"""


def test_a_run_whose_rank_was_killed_is_started_again(machine: Machine) -> None:
    (machine.site.home / "once.py").write_text(FAILS_ONCE)
    job_id = machine.submit(sys.executable, "once.py", options=("--restarts", "1"))
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    assert [machine.lines(rank)[-1] for rank in range(4)] == ["finished in the second attempt"] * 4
    record = json.loads((machine.site.home / "run" / "result.json").read_text())
    assert record["outcome"] == "ok"


def test_a_rank_that_hangs_is_found_and_the_job_ends(machine: Machine) -> None:
    (machine.site.home / "hangs.py").write_text(HANGS)
    job_id = machine.submit(sys.executable, "hangs.py", options=("--hang-after", "8"))
    state, _ = machine.wait(job_id, OVER)
    assert state is JobState.FAILED, machine.log()
    assert "hang" in machine.log().lower() or "no progress" in machine.log().lower(), machine.log()
