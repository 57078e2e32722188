"""The time of a rank in phases, from the lines of its step record."""

from __future__ import annotations

from typing import Any

import pytest

from looping import each
from windlass.node.sampler.steps import PHASES, RankSteps


def _record(*batches: dict[str, Any], began: float = 0.0) -> RankSteps:
    record, first, end = RankSteps(""), 0, 100.0
    record.take("python", {"at": began})
    for batch in batches:
        end += sum(us for us in batch["us"] if us) / 1e6
        record.take("steps", {"first": first, "end": end, **batch})
        first += len(batch["us"])
    return record


def _phases(record: RankSteps) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in zip(PHASES, record.phase_s, strict=True) if seconds > 1e-3}


def test_the_first_long_steps_are_the_warm_up_and_no_steps() -> None:
    record = _record({"us": [None, 3_000_000, 500_000, *[10_000] * 40]}, began=99.0)
    assert _phases(record) == {"start": 1.0, "warm-up": 3.5, "steps": 0.4}
    assert record.all_ms == pytest.approx(10.0)
    assert record.steps == 43


def test_a_save_is_taken_out_of_its_step_however_often_it_comes() -> None:
    every_step = [(n, 40_000) for n in range(1, 41)]
    record = _record({"us": [None, *[50_000] * 40], "save_us": every_step})
    assert _phases(record)["save"] == pytest.approx(1.6)
    assert record.step_ms == pytest.approx(10.0)


def test_batches_without_a_step_are_an_evaluation_and_its_waiting_is_none_of_the_steps() -> None:
    us, wait, fetched = [None, *[10_000] * 40], [0] + [100] * 40, [1] * 41
    us[30], wait[30], fetched[30] = 2_000_000, 1_500_000, 50
    record = _record({"us": us, "wait_us": wait, "fetched": fetched})
    assert _phases(record)["evaluation"] == pytest.approx(1.99, abs=0.01)
    assert record.all_wait_share == pytest.approx(0.01)
    us[30], wait[30], fetched[30] = 2_000_000, 0, 1
    assert "pause" in _phases(_record({"us": us, "wait_us": wait, "fetched": fetched}))


def test_a_step_that_waits_long_for_its_batch_is_a_step() -> None:
    us, wait = [None, *[10_000] * 40], [0] * 41
    for n in range(20, 40, 4):
        us[n], wait[n] = 60_000, 50_000
    record = _record({"us": us, "wait_us": wait})
    assert "pause" not in _phases(record)
    assert (record.all_wait_share or 0) > 0.3


@each(("iterations", "share"), [(1, None), (2, None), (3, 0.5)])
def test_communication_is_measured_by_several_iterations(iterations: int, share: float | None) -> None:
    record = _record({"us": [None, *[10_000] * 40]})
    for number in range(iterations):
        line = {"forward_us": 2_000, "backward_us": 3_000, "comm_us": 6_000, "overlap_us": 1_000}
        record.take("ddp", {"iteration": 100 * number, **line})
        record.take("ddp", {"iteration": 100 * number, **line})
    assert record.comm_share == share


def test_a_measured_iteration_longer_than_the_median_step_is_no_share_above_one() -> None:
    record = _record({"us": [None, *[1_000] * 40]})
    for number in range(5):
        line = {"forward_us": 300, "backward_us": 300, "comm_us": 900, "overlap_us": 0}
        record.take("ddp", {"iteration": number, **line})
    assert record.comm_share == pytest.approx(0.6)


def test_lines_that_make_no_sense_cost_only_themselves() -> None:
    record = _record({"us": [None, *[10_000] * 40]})
    for key, value in (("doing", {}), ("nan", {"step": -1}), ("ddp", {"comm_us": "x"}), ("steps", {"us": [1]})):
        record.take(key, value)
    record.take("steps", {"first": 41, "end": 200.0, "us": [10_000], "save_us": 3})
    assert record.torn == 5
