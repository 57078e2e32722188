"""Where ranks of a hanging run stand, and what torch's flight recorder says."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

from captured import FOLDER
from planning import plan_for
from waiting import wait_until
from windlass.agents.node import diagnostics as node_look
from windlass.agents.node.heartbeat import read_beats, sweep
from windlass.failure.diagnostics import Looked, Standing, odd_one_out, standings, standings_text, top_frame
from windlass.failure.flight import last_collectives, missing_text, read_dump
from windlass.model.request import Allocation

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


def at(rank: int, state: str = "S", frame: str = "all_reduce (c10d.py:1)") -> Standing:
    return Standing(rank=rank, host=f"n{rank}", state=state, frame=frame)


def test_the_innermost_frame_of_the_main_thread_is_found_in_both_forms() -> None:
    assert top_frame(_FAULTHANDLER) == "all_reduce (distributed_c10d.py:3252)"
    assert top_frame(_PY_SPY) == "load (train.py:17)"
    assert top_frame("") == ""


def test_the_rank_that_holds_the_others_up_is_found() -> None:
    waiting = (at(0), at(1), at(3))
    stopped = at(2, "T", "")
    assert odd_one_out((*waiting, stopped)) == stopped
    elsewhere = at(2, "S", "load (train.py:17)")
    assert odd_one_out((*waiting, elsewhere)) == elsewhere
    assert odd_one_out(waiting) is None
    assert odd_one_out((at(0), elsewhere)) is None, "one against one tells nothing"


def test_ranks_at_one_place_are_told_together() -> None:
    text = standings_text((at(0), at(1), at(2, "T", ""), at(3)))
    assert text == "ranks 0-1,3 in all_reduce (c10d.py:1); rank 2 stopped (SIGSTOP)"


def test_what_nodes_say_becomes_standings() -> None:
    said = ({"rank": 1, "host": "n1", "state": "T"}, {"rank": 0, "host": "n0", "state": "S"}, {"node": 0, "done": True})
    two = Allocation(scheduler="slurm", job_id="7", hosts=("nid1", "nid2"))
    plan, _ = plan_for("generic-slurm", "true", allocation=two, ranks_per_node=1)
    found = standings(plan, Looked(answered=frozenset({"n0"}), lines=said), {0: _FAULTHANDLER})
    assert [(one.rank, one.host, one.words()) for one in found] == [
        (0, "nid1", "in all_reduce (distributed_c10d.py:3252)"),
        (1, "nid2", "stopped (SIGSTOP)"),
    ]


def entry(number: int, name: str = "nccl:all_reduce", state: str = "started") -> dict[str, object]:
    return {
        "collective_seq_id": number,
        "profiling_name": name,
        "state": state,
        "process_group": ("0", "default_pg"),
        "is_p2p": False,
    }


def dump(folder: Path, rank: int, *entries: dict[str, object]) -> None:
    (folder / f"rank_{rank}").write_bytes(pickle.dumps({"version": "2.10", "entries": list(entries)}))


def test_the_rank_that_is_missing_from_a_collective_is_named(tmp_path: Path) -> None:
    dump(tmp_path, 0, entry(16, state="completed"), entry(17))
    dump(tmp_path, 1, entry(17))
    dump(tmp_path, 2, entry(16, state="completed"))
    assert missing_text(tmp_path, 3) == "rank 2 is missing from nccl:all_reduce number 17 (it did 16)"


def test_a_record_of_nccl_names_who_did_not_come() -> None:
    """Dumps of torch 2.11 with NCCL 2.28, two ranks: the second one slept instead of coming to the fifth collective."""
    folder = FOLDER / "flight"
    assert missing_text(folder, 2) == "rank 1 is missing from nccl:all_reduce number 5 (it did 4)"
    assert [one.state for one in last_collectives(folder)] == ["scheduled", "completed"]


def test_groups_without_a_description_of_their_own_are_not_mixed_up(tmp_path: Path) -> None:
    rows, columns = {"process_group": ("1", "undefined")}, {"process_group": ("2", "undefined")}
    for rank in (0, 1):
        dump(tmp_path, rank, {**entry(40), **rows}, {**entry(7), **columns})
    assert missing_text(tmp_path, 2) == ""


def test_the_record_of_other_backends_beside_nccls_is_read_too(tmp_path: Path) -> None:
    dump(tmp_path, 0)
    dump(tmp_path, 1)
    for rank, number in ((0, 9), (1, 8)):
        (tmp_path / f"rank_{rank}-other").write_bytes(pickle.dumps({"entries": [entry(number)]}))
    assert "rank 1 is missing" in missing_text(tmp_path, 2)


def test_a_rank_without_a_record_is_told_as_that(tmp_path: Path) -> None:
    dump(tmp_path, 0, entry(17))
    assert "no flight record of rank 1" in missing_text(tmp_path, 2)
    assert missing_text(tmp_path / "nothing", 2) == ""


def test_a_record_that_is_torn_or_would_run_code_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": [entry(1)]})[:20])
    (tmp_path / "rank_1").write_bytes(pickle.dumps(os.system))
    assert read_dump(tmp_path / "rank_0") is None
    assert read_dump(tmp_path / "rank_1") is None
    assert last_collectives(tmp_path) == ()


def test_a_process_is_seen_stopped_and_its_handlers_are_known() -> None:
    code = "import signal, time; signal.signal(signal.SIGUSR1, print); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "up\n"
            assert node_look.catches(child.pid, signal.SIGUSR1)
            assert not node_look.catches(child.pid, signal.SIGUSR2)
            child.send_signal(signal.SIGSTOP)
            wait_until(lambda: node_look.state_of(child.pid) == "T", timeout_s=30, what="it is stopped")
            assert "state T" in node_look.describe(child.pid)
        finally:
            child.kill()
    assert node_look.state_of(child.pid) == "X"


def test_only_marked_processes_are_killed() -> None:
    mine = subprocess.Popen(["sleep", "60"], env={"WINDLASS_PLACE": "run-x.0.3"})
    other = subprocess.Popen(["sleep", "60"], env={"WINDLASS_PLACE": "run-x.0.33"})
    try:
        assert node_look.kill_marked(b"WINDLASS_PLACE=run-x.0.3", 5.0) == 1
        assert mine.wait(timeout=30) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        mine.kill()
        other.kill()
        other.wait(timeout=30)


def test_beats_are_read_and_torn_ones_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0").write_text(f"{17:>15d} {1.5:>18.3f}\n")
    (tmp_path / "1").write_text("")
    (tmp_path / "x").write_text("9 1\n")
    assert read_beats(str(tmp_path)) == {0: 17}


def test_what_a_killed_watch_left_is_swept_and_the_living_are_left_alone(tmp_path: Path) -> None:
    for name in ("w/old.0", "w/living.0", "a/living.0"):
        (tmp_path / name).mkdir(parents=True)
    sweep(str(tmp_path))
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["living.0"]


def test_memory_kills_are_counted_from_something() -> None:
    assert node_look.oom_kills() >= 0
    assert isinstance(node_look.kernel_lines(1e9), list)
