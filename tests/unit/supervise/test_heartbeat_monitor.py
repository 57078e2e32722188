"""Hangs, silent nodes and finished runs, as one attempt's monitor sees them. A clock of its own, no processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planning import plan_for
from windlass.run.folder import RunFolder, make_folder
from windlass.run.sidecars import heartbeat
from windlass.run.sidecars.heartbeat import HeartbeatSidecar
from windlass.run.supervise import heartbeat_monitor
from windlass.run.supervise.heartbeat_monitor import HeartbeatMonitor


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


class Signs:
    def __init__(self) -> None:
        self.beats: set[str] = set()
        self.silent: dict[str, dict[str, object]] = {}
        self.writing: set[str] = set()
        self.reading: set[str] = set()
        self.computing: set[str] = set()
        self.mute: dict[str, float] = {}
        self.given_up: list[str] = []

    def unheard(self) -> dict[str, float]:
        return self.mute

    def give_up_on(self, host: str) -> None:
        self.given_up.append(host)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (heartbeat_monitor, heartbeat):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_folder(str(tmp_path / "r"), tmp_path, "x")


def _job(bytes_read: int = 0) -> Any:
    plan = plan_for("workstation", "true", ranks_per_node=2)[0]
    return SimpleNamespace(failing=False, bytes_read=bytes_read, plan=plan)


def _monitor(folder: RunFolder, signs: Signs, **more: Any) -> HeartbeatMonitor:
    view = cast(Any, SimpleNamespace(note=lambda _: None))
    values: dict[str, Any] = {"hang_after_s": 15.0, "deadline_s": None, "margin_s": 0.0, "take_stacks": lambda: None}
    monitor = HeartbeatMonitor(folder, view, **(values | more))
    monitor.signs = signs
    return monitor


def _fires_after(monitor: HeartbeatMonitor, clock: Clock, job: Any, limit_s: float = 120.0) -> float | None:
    began = clock.now
    while clock.now - began < limit_s:
        if monitor.look(job) is not None:
            return clock.now - began
        clock.now += 0.5
    return None


def test_a_hang_early_in_a_run_is_noticed_within_ten_seconds_beyond_the_limit(folder: RunFolder, clock: Clock) -> None:
    fired = _fires_after(_monitor(folder, Signs()), clock, _job(bytes_read=100))
    assert fired is not None and 15 <= fired <= 25


@pytest.mark.parametrize(("sign", "bytes_read"), [("reading", 0), ("reading", 100), ("computing", 0)])
def test_a_start_that_still_works_is_no_hang_yet(folder: RunFolder, clock: Clock, sign: str, bytes_read: int) -> None:
    signs = Signs()
    getattr(signs, sign).add("n1")
    fired = _fires_after(_monitor(folder, signs), clock, _job(bytes_read))
    assert fired is not None and fired >= heartbeat_monitor.starting_s(15)


def test_ranks_that_spin_after_their_first_output_hang(folder: RunFolder, clock: Clock) -> None:
    signs = Signs()
    signs.computing.add("n1")
    fired = _fires_after(_monitor(folder, signs), clock, _job(bytes_read=100))
    assert fired is not None and fired <= 25, "a collective of NCCL waits with a busy processor"


def test_a_run_whose_ranks_have_all_finished_is_no_hang(folder: RunFolder, clock: Clock) -> None:
    folder.part("ends/0").write_text("1.0\t0\tn1\t0\n1.0\t1\tn1\t0\n")
    monitor = _monitor(folder, Signs())
    assert _fires_after(monitor, clock, _job(bytes_read=100)) is not None, "the launcher is ended"
    assert monitor.hang is None


def test_a_node_that_falls_silent_and_does_not_answer_is_lost(folder: RunFolder, clock: Clock) -> None:
    signs = Signs()
    monitor = _monitor(folder, signs, hang_after_s=None, answers=lambda hosts: frozenset({"n2"}) & set(hosts))
    assert _fires_after(monitor, clock, _job(), 5) is None
    signs.mute = {"n2": 9.0}
    assert _fires_after(monitor, clock, _job(), 5) is None, "only its agent is dead"
    assert signs.given_up and monitor.lost == ()
    signs.mute = {"n1": 9.0}
    assert _fires_after(monitor, clock, _job(), 5) is not None
    assert monitor.lost == ("n1",)


class Agents:
    running = True
    argv = ("srun",)

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.heard: dict[int, float] = {}

    def hear(self) -> None:
        pass

    def forgive_silence(self) -> None:
        self.heard = dict.fromkeys(self.heard, 0.0)

    def start(self, stopping: object) -> bool:
        return True


def _sidecar(folder: RunFolder, agents: Agents) -> HeartbeatSidecar:
    plan = plan_for("workstation", "true", ranks_per_node=2)[0]
    view = cast(Any, SimpleNamespace(note=lambda _: None))
    sidecar = HeartbeatSidecar(cast(Any, agents), None, plan, folder, view, ("n0", "n1", "n2"))
    sidecar.start(lambda: False)
    return sidecar


def test_a_node_is_silent_only_while_others_are_heard(folder: RunFolder, clock: Clock) -> None:
    agents = Agents()
    sidecar = _sidecar(folder, agents)
    agents.heard = {0: clock.now, 1: clock.now - 9, 2: clock.now - 1}
    assert sidecar.unheard() == {"n1": 9.0}
    agents.heard = dict.fromkeys(range(3), clock.now - 30)
    assert sidecar.unheard() == {}, "the fault is on this side"
    agents.heard = {0: clock.now, 1: clock.now - 9, 2: clock.now}
    sidecar.writing.add("n1")
    sidecar.give_up_on("n1")
    assert sidecar.unheard() == {} and not sidecar.writing


def test_a_pause_of_windlass_itself_makes_no_node_silent(folder: RunFolder, clock: Clock) -> None:
    agents = Agents()
    sidecar = _sidecar(folder, agents)
    sidecar.poll()
    agents.heard = {0: clock.now, 1: clock.now}
    clock.now += 60
    sidecar.poll()
    assert set(agents.heard.values()) == {0.0}, "their silence counts from now on"
