"""Who is told to have failed, where the rank that ended first only lost another."""

from __future__ import annotations

from pathlib import Path

from unit.cli.typed import run_here, script
from windlass.run.failure.signs import complains_of_peers, died_of, excerpt

_LOST = ("Traceback (most recent call last):", '  File "a.py"', "RuntimeError: Connection closed by peer [10.0.0.1]:5")
_NAN = ("Traceback (most recent call last):", '  File "a.py"', "ValueError: loss is nan")

# Rank 0 loses its peer and is gone before rank 1, which failed, has ended.
SLOW_TO_DIE = """
import atexit, os, sys, time
if os.environ["RANK"] == "1":
    atexit.register(time.sleep, 1)
    raise ValueError("loss is nan")
time.sleep(0.4)
raise RuntimeError("Connection closed by peer [127.0.0.1]:5351")
"""


def test_a_complaint_about_a_peer_is_known() -> None:
    assert complains_of_peers(_LOST)
    assert not complains_of_peers(_NAN)
    assert not complains_of_peers(("Connection closed by peer, trying again", *_NAN))


def test_only_a_traceback_at_the_end_is_what_a_rank_died_of() -> None:
    assert died_of((*_NAN, "Terminated")) == "ValueError: loss is nan"
    assert died_of((*_NAN, "step 1", "step 2", "step 3", "step 4")) == ""
    assert died_of(("step 1",)) == ""


def test_a_long_traceback_is_kept_whole() -> None:
    deep = (_NAN[0], *(f"  File {at}" for at in range(30)), _NAN[2])
    assert excerpt(("before",) * 40 + deep) == deep
    assert len(excerpt(("line",) * 40)) == 20


def test_frames_of_libraries_do_not_hide_the_line_of_the_script_where_a_peer_was_lost() -> None:
    """As torch 2.11 writes it for gloo."""
    lines = (
        "step 17",
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/home/user/train.py", line 60, in <module>',
        "[rank0]:     dist.all_reduce(gradient)",
        '[rank0]:   File "/env/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper',
        "[rank0]:     return func(*args, **kwargs)",
        "[rank0]:            ^^^^^^^^^^^^^^^^^^^^^",
        '[rank0]:   File "/env/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce',
        "[rank0]:     work.wait()",
        "[rank0]: RuntimeError: [../pair.cc:537] Read error [10.0.0.2]:670: Connection reset by peer",
    )
    assert excerpt(lines) == (*lines[1:4], lines[-1])
    other = (*lines[:-1], "[rank0]: ValueError: a real mistake")
    assert excerpt(other) == other, "of any other error all of it is kept"


def test_the_rank_that_failed_is_named_although_its_peer_ended_first(tmp_path: Path) -> None:
    path = str(script(tmp_path, SLOW_TO_DIE))
    done = run_here("-r", "2", "--scheduler", "none", "--show", "none", path, cwd=tmp_path)
    assert done.code == 1
    assert "rank 1 on" in done.stderr and "ValueError: loss is nan" in done.stderr, done.text
