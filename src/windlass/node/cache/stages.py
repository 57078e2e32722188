"""Time profile of a miss: calls and seconds by stage, and CPU time and context switches by kind of thread.

It is always on, because two clock reads cost less than a thousandth of a miss. Each thread counts separately, so there
are no locks. A figure that is read during a run may lack the last calls.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from time import perf_counter

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Stages:
    """The stages of one process."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._tables: list[dict[str, list[float]]] = []

    def add(self, stage: str, began: float) -> float:
        """Count one pass of `stage` that began at `began` (`perf_counter`).

        Return the current time as the next start.
        """
        now = perf_counter()
        try:
            table = self._own.table
        except AttributeError:
            table = self._own.table = {}
            self._tables.append(table)
        try:
            entry = table[stage]
        except KeyError:
            entry = table[stage] = [0, 0.0]
        entry[0] += 1
        entry[1] += now - began
        return now

    def figures(self) -> dict[str, list[float]]:
        """Return calls and seconds of each stage so far."""
        found: dict[str, list[float]] = {}
        for table in list(self._tables):
            for stage, (calls, seconds) in list(table.items()):
                entry = found.setdefault(stage, [0, 0.0])
                entry[0] += calls
                entry[1] = round(entry[1] + seconds, 6)
        return found


STAGES = Stages()
"""The stages of this process."""


def thread_figures() -> dict[str, list[float]]:
    """Return CPU seconds and voluntary and involuntary switches of this process, by thread name."""
    names = {thread.native_id: re.sub(r"[-_ (].*|\d+$", "", thread.name) for thread in threading.enumerate()}
    found: dict[str, list[float]] = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            entry = found.setdefault(names.get(int(task), "other"), [0.0, 0, 0])
            for place, value in enumerate(_task(task)):
                entry[place] = round(entry[place] + value, 3)
    spent = os.times()
    gone = spent.user + spent.system - sum(seconds for seconds, _, _ in found.values())
    if gone > 2 * _TICK_S * len(found):
        found["ended"] = [round(gone, 3), 0, 0]  # threads that have ended
    return found


def _task(task: str) -> tuple[float, int, int]:
    with open("/proc/self/task/%s/stat" % task, encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    with open("/proc/self/task/%s/status" % task, encoding="utf-8", errors="replace") as file:
        counts = re.findall(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", file.read(), re.MULTILINE)
    return (int(fields[11]) + int(fields[12])) * _TICK_S, int(counts[0]), int(counts[1])
