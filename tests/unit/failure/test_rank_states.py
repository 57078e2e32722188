"""Where the ranks of a hanging run are, and which of them holds the others up."""

from __future__ import annotations

from pathlib import Path

from planning import plan_for
from windlass.model.request import Allocation
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.failure.rank_states import RankState, rank_states, states_text, straggler, top_frame

_FAULTHANDLER = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f2 (most recent call first):
  File "/env/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/user/train.py", line 60 in <module>
"""
_PY_SPY = """Process 123: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 123 (active): "MainThread"
    load (train.py:17)
    <module> (train.py:40)
Thread 140 (idle): "pin_memory"
    wait (threading.py:327)
"""


def at(rank: int, state: str = "S", frame: str = "all_reduce (c10d.py:1)") -> RankState:
    return RankState(rank=rank, host=f"n{rank}", state=state, frame=frame)


def test_the_innermost_frame_of_the_main_thread_is_found_in_both_forms() -> None:
    assert top_frame(_FAULTHANDLER) == "all_reduce (distributed_c10d.py:3252)"
    assert top_frame(_PY_SPY) == "load (train.py:17)"
    assert top_frame("") == ""


def test_the_rank_that_holds_the_others_up_is_found() -> None:
    waiting = (at(0), at(1), at(3))
    stopped = at(2, "T", "")
    assert straggler((*waiting, stopped)) == stopped
    elsewhere = at(2, "S", "load (train.py:17)")
    assert straggler((*waiting, elsewhere)) == elsewhere
    assert straggler(waiting) is None
    assert straggler((at(0), elsewhere)) is None, "one against one tells nothing"


def test_no_rank_is_accused_where_all_of_them_are_stopped_or_gone() -> None:
    for letter in ("T", "gone", "D"):
        assert straggler((at(0, letter, ""), at(1, letter, ""))) is None
        assert straggler((at(0, letter, ""),)) is not None, "a rank alone"


def test_ranks_in_one_place_are_told_together() -> None:
    text = states_text((at(0), at(1), at(2, "T", ""), at(3)))
    assert text == "ranks 0-1,3 in all_reduce (c10d.py:1); rank 2 stopped (SIGSTOP)"


def test_what_node_diagnostics_say_becomes_rank_states(tmp_path: Path) -> None:
    said = ({"rank": 1, "host": "n1", "state": "T"}, {"rank": 0, "host": "n0", "state": "S"}, {"node": 0, "done": True})
    two = Allocation(scheduler="slurm", job_id="7", hosts=("nid1", "nid2"))
    plan, _ = plan_for("generic-slurm", "true", allocation=two, ranks_per_node=1)
    logs = rank_logs(plan, tmp_path)
    logs.path(0).parent.mkdir()
    logs.path(0).write_text("".join(f"0: {line}\n" for line in ("step 1", *_FAULTHANDLER.splitlines())))
    assert [(one.rank, one.host, one.text()) for one in rank_states(logs, said)] == [
        (0, "nid1", "in all_reduce (distributed_c10d.py:3252)"),
        (1, "nid2", "stopped (SIGSTOP)"),
    ]
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "stack-rank-0.txt").write_text(_PY_SPY)
    assert rank_states(logs, said)[0].frame == "load (train.py:17)", "py-spy's is the better one"
