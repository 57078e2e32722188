"""Start failed ranks again in place: the launcher's step, the rank scripts and the agents stay.

windlass sees a failed rank in the reports of the rank scripts. It orders the agents to end the other ranks, judges the
attempt as after any end, and orders the next start. The rank scripts wait for that order. So the new ranks have the
cores, devices, limits, variables and log of the old ones. In all other cases the launcher ends the step, and the loop
of attempts continues as without this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from windlass.run.failure.ends import End, any_failed, read_ends
from windlass.run.failure.rank_logs import keep_logs, mark_logs, rank_logs
from windlass.run.failure.root_cause import RESUME_ME
from windlass.run.failure.verdict import attempt_folders
from windlass.run.jobs import TICK_S, StartedJob
from windlass.run.sidecars.heartbeat import HeartbeatSidecar
from windlass.run.supervise.heartbeat_monitor import HeartbeatMonitor

_DOWN_S = 5.0
_FAST_S, _FAST_NODES = 0.02, 64


class InPlace:
    """`run.execute.Watch`: the monitor of the running attempt, and the starts in place.

    `again` judges the ended attempt by its first exit code among others, and returns the number of the next one. None
    if it must not start in place.
    """

    def __init__(
        self, monitor: HeartbeatMonitor, sidecar: HeartbeatSidecar, number: int, again: Callable[[int], int | None]
    ) -> None:
        self._monitor = monitor
        self._sidecar = sidecar
        self._again = again
        self._ending_s: float | None = None
        self._off = False
        self.number = number
        self.started = time.time()

    def look(self, job: StartedJob) -> str | None:
        ending = self._ending_s is not None and not self._off and not job.asked
        reason = None if ending else self._monitor.look(job)
        if not job.in_place or job.failing or job.asked or self._off or self._monitor.time_up:
            return reason
        if self._ending_s is None and not self._begin(job):
            return reason
        if not self._off:
            self._look_at_ends(job)
        return "a rank failed" if self._off else None

    def _begin(self, job: StartedJob) -> bool:
        """Order the end of all ranks if one has failed or the run hangs. Returns whether that is so."""
        if self._monitor.hang is None and not any_failed(job.folder.path):
            return False
        failed = [end for end in _ends(job) if end.code]
        self._monitor.noticed = self._monitor.noticed or time.time()
        self._ending_s = time.monotonic()
        asked = any(end.code == RESUME_ME for end in failed)
        self._off = asked or not self._sidecar.order("end", self.number)
        job.tick_s = _FAST_S if job.plan.nodes <= _FAST_NODES else TICK_S
        return True

    def _look_at_ends(self, job: StartedJob) -> None:
        """Start the next attempt if all ranks of this one have ended."""
        assert self._ending_s is not None
        ends = _ends(job) if self._sidecar.is_down(self.number) else ()
        if len({end.rank for end in ends}) < job.plan.world_size:
            self._off = time.monotonic() - self._ending_s > _DOWN_S
            return
        first = next(end for end in ends if end.code)
        left = any(not end.code for end in ends)  # its rank script has ended, too
        number = None if left else self._again(first.code)
        if number is None:
            self._off = True
            return
        logs = rank_logs(job.plan, job.folder.path)
        sizes = mark_logs(logs)
        self.number, self.started, self._ending_s = number, time.time(), None
        job.tick_s = TICK_S / 2
        self._monitor.restart()
        self._off = not self._sidecar.order("start", number)
        keep_logs(logs, sizes, attempt_folders(job.folder.path)[-1])


def _ends(job: StartedJob) -> tuple[End, ...]:
    return read_ends(rank_logs(job.plan, job.folder.path))
