"""How a script ends: with its own code and its own last words, whatever threads the collectives still have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from requirements import require_torch
from unit.runtime.ranks import environment, free_port

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = """
import sys, torch, windlass
torch.set_num_threads(1)
run = windlass.init(timeout_s=60)
model = torch.nn.Linear(2, 2)
snapshot = windlass.Snapshot(sys.argv[1], model=model, wait_s=60)
for step in snapshot.resume(range(3)):
    torch.distributed.all_reduce(torch.ones(4))
    snapshot.step(step)
if sys.argv[2] == "raise":
    raise ValueError("a mistake")
"""


@pytest.mark.parametrize("rounds", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("how", "code"), [("end", 0), ("raise", 1)])
def test_a_script_that_does_not_close_its_groups_still_ends_with_its_own_code(
    tmp_path: Path, how: str, code: int, rounds: int
) -> None:
    """Without care a fifth of the pairs aborted: so eight rounds are enough to see it come back."""
    for number in range(rounds):
        port = free_port()
        argv = [sys.executable, "-c", SCRIPT, str(tmp_path / str(number)), how]
        ranks = [
            subprocess.Popen(argv, env=environment(rank, 2, port), stderr=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        try:
            said = [rank.communicate(timeout=100)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        assert [rank.returncode for rank in ranks] == [code] * 2, said
        assert all(text.rstrip().endswith("ValueError: a mistake") for text in said) == (how == "raise"), said


LAST = """
import atexit, os
def tell():
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    os.write(1, "".join(f"{name}\\n" for name in names if "gloo" in name or "store" in name).encode())
atexit.register(tell)  # the first one registered is the last one called
"""


@pytest.mark.parametrize("how", ["end", "raise"])
def test_no_thread_of_a_collective_is_left_when_the_interpreter_ends(tmp_path: Path, how: str) -> None:
    """Such threads abort the process now and then; whoever still holds a group keeps them alive."""
    port = free_port()
    argv = [sys.executable, "-c", LAST + SCRIPT, str(tmp_path / "snapshots"), how]
    ranks = [
        subprocess.Popen(argv, env=environment(rank, 2, port), stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert said == ["", ""]
