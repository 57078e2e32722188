"""Where the ranks of a hanging run are, and which of them holds the others up."""

from __future__ import annotations

from pathlib import Path

from planning import plan_for
from windlass.model.request import Allocation
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.failure.rank_states import Frames, RankState, frames_of, rank_states, states_text, straggler

_FAULTHANDLER = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f2 (most recent call first):
  File "/env/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
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


def at(rank: int, state: str = "S", frame: str = "wait (gloo.py:1)", *, collective: bool = False) -> RankState:
    return RankState(rank=rank, host=f"n{rank}", state=state, frames=Frames(frame, collective=collective))


def test_the_place_of_the_main_thread_is_found_in_both_forms() -> None:
    assert frames_of(_FAULTHANDLER) == Frames("all_reduce (distributed_c10d.py:3252)", "<module> (train.py:60)", True)
    assert frames_of(_PY_SPY) == Frames("load (train.py:17)")
    assert frames_of("") == Frames()


def test_the_rank_outside_of_the_collective_holds_the_others_up() -> None:
    inside = at(0, collective=True)
    elsewhere = at(1, "S", "load (train.py:17)")
    assert straggler((inside, elsewhere)) == elsewhere, "one against one, and only one waits for the other"
    assert straggler((inside, at(1, collective=True), at(2, "R", "step (train.py:9)"), elsewhere)) is not None
    assert straggler((inside, elsewhere, at(2, "S", "save (train.py:20)"))) is None, "most are outside"


def test_the_only_rank_that_flight_records_show_behind_holds_the_others_up() -> None:
    ranks = (at(0, collective=True), at(1, collective=True))
    assert straggler(ranks, (1,)) == ranks[1]
    assert straggler(ranks, (0, 1)) is None


def test_ranks_without_a_stack_come_with_a_hint() -> None:
    assert "py-spy" in states_text((at(0, frame=""), at(1, frame="")))
    assert "py-spy" not in states_text((at(0, frame=""), at(1)))


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
    assert text == "ranks 0-1,3 in wait (gloo.py:1); rank 2 stopped (SIGSTOP)"


def test_what_node_diagnostics_say_becomes_rank_states(tmp_path: Path) -> None:
    said = ({"rank": 1, "host": "n1", "state": "T"}, {"rank": 0, "host": "n0", "state": "S"}, {"node": 0, "done": True})
    two = Allocation(scheduler="slurm", job_id="7", hosts=("nid1", "nid2"))
    plan, _ = plan_for("generic-slurm", "true", allocation=two, ranks_per_node=1)
    logs = rank_logs(plan, tmp_path)
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "stack-rank-0.txt").write_text(f"rank 0 on n0, process 7\nstate S\n\n{_FAULTHANDLER}")
    assert [(one.rank, one.host, one.text()) for one in rank_states(logs, said)] == [
        (0, "nid1", "in all_reduce (distributed_c10d.py:3252) from <module> (train.py:60)"),
        (1, "nid2", "stopped (SIGSTOP)"),
    ]
