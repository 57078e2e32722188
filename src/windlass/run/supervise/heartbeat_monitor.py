"""Watch the running ranks for progress and for the end of the allocation. Implements `run.execute.Watch`.

A run hangs if for `hang_after_s` no rank wrote anything and, if the ranks report steps, no step was finished. Bytes
count, not lines: a progress bar is output. Until ranks have reported a step, those that still read or write files, or
compute before their first output, are starting. The stacks of all ranks are taken before any rank is ended.

A node that sends no heartbeat while others do is checked once. If it does not respond, it is lost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Protocol

from windlass.plan.render.rank_script import REQUEUE_SAVED
from windlass.run.failure.ends import all_finished
from windlass.run.folder import RunFolder
from windlass.run.jobs import StartedJob
from windlass.run.output import OutputView

_CHECK_S = 1.0
_LAST_CHANCE = 0.4
"""Fraction of the margin before the end of the allocation at which the remaining ranks are ended."""


class HeartbeatSigns(Protocol):
    """The signs that the heartbeat service reports."""

    beats: set[str]
    silent: dict[str, dict[str, object]]
    writing: set[str]
    reading: set[str]
    computing: set[str]

    def unheard(self) -> dict[str, float]: ...

    def give_up_on(self, host: str) -> None: ...


class HeartbeatMonitor:
    """The watch of one attempt."""

    def __init__(
        self,
        folder: RunFolder,
        view: OutputView,
        *,
        hang_after_s: float | None,
        deadline_s: float | None,
        margin_s: float,
        take_stacks: Callable[[], None],
        answers: Callable[[tuple[str, ...]], frozenset[str]] = frozenset,
    ) -> None:
        self._folder = folder
        self._view = view
        self._hang_after_s = hang_after_s
        self._deadline_s = deadline_s
        self._margin_s = margin_s
        self._take_stacks = take_stacks
        self._answers = answers
        self._began = self._moved = time.monotonic()
        self._looked = self._checked = 0.0
        self._output: tuple[int, dict[str, int]] = (0, {})
        self.signs: HeartbeatSigns | None = None
        self.noticed: float | None = None
        self.time_up = False
        self.hang: str | None = None
        self.lost: tuple[str, ...] = ()
        """Nodes that became silent and did not respond to a check."""

    def restart(self) -> None:
        """Begin again with another attempt of the same ranks."""
        self._began = self._moved = time.monotonic()
        self._output = (0, {})
        self.noticed, self.hang = None, None

    def look(self, job: StartedJob) -> str | None:
        if job.failing:
            self.noticed = self.noticed or time.time()
            return None
        return self._time_left(job) or self._lost_node() or self._silence(job)

    def _lost_node(self) -> str | None:
        now = time.monotonic()
        if self.signs is None or self.time_up or now - self._checked < _CHECK_S:
            return None
        self._checked = now
        unheard = self.signs.unheard()
        if not unheard:
            return None
        hosts, silent_s = tuple(sorted(unheard)), max(unheard.values())
        self._view.note(f"windlass: {', '.join(hosts)} sent no heartbeat for {silent_s:.0f} s: checking")
        answered = self._answers(hosts)
        for host in answered:
            self.signs.give_up_on(host)
        self.lost = tuple(host for host in hosts if host not in answered and host in self.signs.unheard())
        if not self.lost:
            return None
        self.noticed = time.time()
        return f"{self.lost[0]} no longer responds"

    def _time_left(self, job: StartedJob) -> str | None:
        if self._deadline_s is None:
            return None
        left = self._deadline_s - time.time()
        if left <= self._margin_s and not self.time_up:
            self.time_up = True
            self._view.note(f"windlass: {left:.0f} s of the allocation are left: asking the ranks to save and exit")
            job.pass_on(signal.SIGUSR2)
        if left <= self._margin_s * _LAST_CHANCE:
            return "the time is up and the ranks have not exited"
        if self.time_up and self._folder.part(REQUEUE_SAVED).exists():
            return "the trainer has saved"
        return None

    def _silence(self, job: StartedJob) -> str | None:
        if self._hang_after_s is None or self.time_up:
            return None
        now = time.monotonic()
        if now - self._looked < min(1.0, self._hang_after_s / 10):
            return None
        self._looked = now
        sizes = {path.name: path.stat().st_size for path in self._folder.part("out").iterdir()}
        if (job.bytes_read, sizes) != self._output:
            self._output, self._moved = (job.bytes_read, sizes), now
        still = now - self._moved
        if still < self._hang_after_s:
            return None
        signs = self.signs
        if signs is not None and signs.writing:
            return None  # the launcher holds back an incomplete line
        if signs is not None and signs.beats:
            if not signs.silent:
                return None  # no output, but steps are finished
        elif now - self._began < starting_s(self._hang_after_s) and self._starts(signs):
            return None
        if all_finished(self._folder.path, job.plan.world_size):
            return "all ranks have finished, but the launcher is still running"
        self.hang = f"no output and no step for {still:.0f} s"
        self.noticed = time.time()
        self._view.note(f"windlass: {self.hang}: taking the stacks of all ranks")
        self._take_stacks()
        return self.hang

    def _starts(self, signs: HeartbeatSigns | None) -> bool:
        """Return whether the ranks are still starting: they import or compile. Without an agent this is unknown."""
        if signs is None:
            return True
        quiet = self._output[0] == 0 and not any(self._output[1].values())
        return bool(signs.reading) or (quiet and bool(signs.computing))


def starting_s(hang_after_s: float) -> float:
    """Return how long a start may be silent while its ranks still import or compile."""
    return min(10 * hang_after_s, 3 * hang_after_s + 30)


def margin_s(deadline_s: float | None, now_s: float, grace_s: float) -> float:
    """Return how long before the end of the allocation the ranks are asked to exit: a minute, less in short jobs."""
    if deadline_s is None:
        return 0.0
    whole = max(deadline_s - now_s, 0.0)
    return max(min(60.0, 0.1 * whole), min(0.25 * whole, grace_s + 5.0))
