"""When a run talks, saves and stops: counted, so that all ranks come to the same answer."""

from __future__ import annotations

import itertools
import time

from looping import each
from windlass.runtime.loop import SavePace
from windlass.runtime.stop import REASONS, StopFlag, find_deadline


def talks(pace: SavePace, *, calls: int, step_s: float, step_us: int) -> list[int]:
    """At which calls this rank would talk to the others."""
    now, at = 0.0, []
    for call in range(calls):
        now += step_s
        if not pace.quiet(now):
            at.append(call)
            pace.agreed(now, step_us)
    return at


def test_ranks_of_different_speed_talk_at_the_same_steps() -> None:
    slow = SavePace(every_s=300, every_steps=None, shared=True, now=0.0)
    fast = SavePace(every_s=300, every_steps=None, shared=True, now=0.0)
    agreed_us = 20_000  # the slowest rank's, which both got from the same reduction
    assert talks(slow, calls=500, step_s=0.02, step_us=agreed_us) == talks(
        fast, calls=500, step_s=0.001, step_us=agreed_us
    )


def test_short_steps_are_talked_about_rarely_and_long_ones_each_time() -> None:
    short = SavePace(every_s=300, every_steps=None, shared=True, now=0.0)
    gaps = talks(short, calls=1000, step_s=1e-5, step_us=10)
    assert len(gaps) < 25 and max(b - a for a, b in itertools.pairwise(gaps)) <= 64
    long = SavePace(every_s=300, every_steps=None, shared=True, now=0.0)
    assert talks(long, calls=10, step_s=2.0, step_us=2_000_000) == list(range(10))


def test_a_save_by_count_falls_on_the_very_step() -> None:
    pace = SavePace(every_s=None, every_steps=100, shared=True, now=0.0)
    saved = []
    for call in range(1, 1001):
        if not pace.quiet(0.0):
            due = pace.due(0.0)
            pace.agreed(0.0, 1)
            if due:
                saved.append(call)
                pace.saving(0.0)
    assert saved == list(range(100, 1001, 100))


def test_a_save_by_time_counts_from_the_start_of_the_former_one() -> None:
    pace = SavePace(every_s=10, every_steps=None, shared=False, now=0.0)
    assert not pace.due(9.9) and pace.due(10.0)
    pace.saving(12.0)
    assert not pace.due(21.9) and pace.due(22.0)


@each(
    ("left_s", "save_s", "stops"),
    [(1000.0, 1.0, False), (50.0, 1.0, True), (200.0, 90.0, True), (200.0, 1.0, False)],
)
def test_the_margin_before_the_deadline_grows_with_what_a_save_takes(left_s: float, save_s: float, stops: bool) -> None:
    long_ago = time.time() - 10_000  # a long allocation: the margin is its full minute
    flag = StopFlag(time.time() + left_s, started=long_ago)
    flag.check_deadline(save_s, 0.5)
    assert (REASONS[flag.reason] == "the allocation ends") == stops


def test_a_very_short_allocation_is_not_all_margin() -> None:
    flag = StopFlag(time.time() + 20.0)
    flag.check_deadline(0.1, 0.5)
    assert flag.reason == 0


def test_the_launchers_deadline_counts_before_slurms() -> None:
    assert find_deadline({}) is None
    assert find_deadline({"SLURM_JOB_END_TIME": "100"}) == 100.0
    assert find_deadline({"SLURM_JOB_END_TIME": "100", "WINDLASS_DEADLINE": "90.5"}) == 90.5
