"""The record of one rank's steps: what is written, what is folded, and who may write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.node.sampler import recorder
from windlass.node.sampler.recorder import Recorder, block_of, fold_lines, merge_blocks, parse_lines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _lines(path: Path) -> list[dict[str, object]]:
    return parse_lines(path.read_bytes().splitlines())[0]


def _steps(path: Path) -> list[int | None]:
    return [value for line in _lines(path) if "steps" in line for value in line["steps"]["us"]]  # type: ignore[index]


def _record(path: Path, durations: list[float], clock: Clock, wait: float = 0.0) -> Recorder:
    made = Recorder(str(path), clock)
    made.step("a")
    for seconds in durations:
        clock.now += seconds
        if wait:
            made.waited(wait)
        made.step("a")
    return made


def test_steps_and_waiting_are_written_with_the_end_of_the_program(tmp_path: Path) -> None:
    made = _record(tmp_path / "0", [0.25, 0.5], Clock(), wait=0.125)
    made.close()
    lines = _lines(tmp_path / "0")
    assert [next(iter(line)) for line in lines] == ["begin", "steps", "steps", "end"]
    assert _steps(tmp_path / "0") == [None, 250_000, 500_000]
    assert lines[2]["steps"]["wait_us"] == [125_000, 125_000]  # type: ignore[index]
    assert lines[-1]["end"]["steps"] == 3  # type: ignore[index]


def test_waiting_is_unknown_where_no_loader_was_seen(tmp_path: Path) -> None:
    made = _record(tmp_path / "0", [0.25], Clock())
    made.close()
    assert all("wait_us" not in line.get("steps", {}) for line in _lines(tmp_path / "0"))  # type: ignore[operator]


def test_lines_are_written_at_intervals_not_at_every_step(tmp_path: Path) -> None:
    made = _record(tmp_path / "0", [0.01] * 50, Clock())
    assert _steps(tmp_path / "0") == [None]
    made.close()
    assert len(_steps(tmp_path / "0")) == 51


def test_the_first_optimizer_counts_the_steps_and_another_takes_over_when_it_stops(tmp_path: Path) -> None:
    made = Recorder(str(tmp_path / "0"), Clock())
    for _ in range(10):
        for who in ("generator", "discriminator", "discriminator", "third"):
            made.step(who)
    assert made.steps == 10
    for _ in range(100):
        made.step("discriminator")
    assert 60 <= made.steps - 10 <= 70


def test_the_programs_own_word_counts_more_than_optimizers(tmp_path: Path) -> None:
    made = Recorder(str(tmp_path / "0"), Clock())
    made.step("optimizer")
    for _ in range(100):
        made.step("optimizer")
        made.step("optimizer")
        made.explicit()
    assert made.steps == 1 + 2 + 100


def test_a_second_process_of_the_rank_does_not_write_into_the_record(tmp_path: Path) -> None:
    first, second = Recorder(str(tmp_path / "0"), Clock()), Recorder(str(tmp_path / "0"), Clock())
    first.step()
    second.step()
    assert first.on
    assert not second.on
    assert sum("begin" in line for line in _lines(tmp_path / "0")) == 1


def test_a_forked_child_is_not_the_rank(tmp_path: Path) -> None:
    made = _record(tmp_path / "0", [0.01], Clock())
    child = os.fork()
    if child == 0:
        made.forget()
        made.step("a")
        made.close()
        os._exit(0)
    os.waitpid(child, 0)
    made.close()
    assert len(_steps(tmp_path / "0")) == 2


def test_the_torn_line_of_a_killed_process_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(b'{"begin":{"version":1}}\n{"steps":{"first":0,"end":1,"us":[nu')
    made = _record(path, [0.25], Clock())
    made.close()
    lines, torn = parse_lines(path.read_bytes().splitlines())
    assert torn == 1
    assert [value for line in lines if "steps" in line for value in line["steps"]["us"]] == [None, 250_000]


def test_a_long_record_is_folded_and_no_step_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_BYTES", 20_000)
    monkeypatch.setattr(recorder, "KEPT_STEPS", 500)
    monkeypatch.setattr(recorder, "MAX_BLOCKS", 8)
    clock = Clock()
    made = _record(tmp_path / "0", [0.1] * 20_000, clock, wait=0.01)
    made.close()
    assert (tmp_path / "0").stat().st_size < 40_000
    lines = _lines(tmp_path / "0")
    folded = [line["folded"] for line in lines if "folded" in line]
    assert 1 <= len(folded) <= 8 + 2
    assert sum(block["count"] for block in folded) + len(_steps(tmp_path / "0")) == 20_001  # type: ignore[index]
    assert all(abs(block["us"][3] - 100_000) < 2 for block in folded)  # type: ignore[index]
    assert sum("begin" in line for line in lines) == 1
    assert folded[0]["first"] == 0  # type: ignore[index]


def test_blocks_keep_sums_and_extremes_when_they_are_merged() -> None:
    one = block_of([{"first": 0, "end": 1.0, "us": [None, 10, 20, 30]}])
    two = block_of([{"first": 4, "end": 2.0, "us": [100, 200], "wait_us": [1, 2]}])
    both = merge_blocks([one, two])
    assert (both["count"], both["timed"], both["sum_us"], both["wait_sum_us"]) == (6, 5, 360, 3)
    assert (both["us"][0], both["us"][-1], both["begin"], both["end"]) == (10, 200, 1.0, 2.0)


def test_folding_takes_what_it_can_read() -> None:
    raw = [b"", b"nonsense", b"[1]", json.dumps({"steps": {"first": 0, "end": 1, "us": [None]}}).encode()]
    assert fold_lines(raw) == [{"steps": {"first": 0, "end": 1, "us": [None]}}]


def test_a_place_that_cannot_be_written_ends_the_record_not_the_program(tmp_path: Path) -> None:
    made = Recorder(str(tmp_path / "nowhere" / "0"), Clock())
    made.step()
    assert not made.on
    made.step()
    made.close()


def test_step_of_the_runtime_records_without_the_hook_too(tmp_path: Path) -> None:
    program = "import windlass; [windlass.step(data_wait_s=0.5) for _ in range(3)]"
    environ = {**os.environ, "WINDLASS_STEPS": str(tmp_path), "RANK": "7"}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=60)
    assert len(_steps(tmp_path / "7")) == 3
    subprocess.run([sys.executable, "-c", program], env={"PATH": os.environ["PATH"]}, check=True, timeout=60)
