"""Processes that carry a mark, an entry of their environment: found and killed wherever they have gone.

Travels to the nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time


def kill_marked(mark: bytes, patience_s: float = 5.0) -> int:
    """Kill until nobody with this mark is left, new ones included, or the patience is; this process and those above
    it are spared. Returns how many were killed."""
    spared = _ancestors()
    killed: set[int] = set()
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        alive = [pid for pid in marked(mark) if pid not in spared]
        if not alive:
            break
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    return len(killed)


def marked(mark: bytes) -> list[int]:
    """Processes that started with this entry in their environment; zombies have none any more."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/environ" % name, "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(int(name))
    return found


def _ancestors() -> set[int]:
    found = {os.getpid()}
    pid = os.getpid()
    with contextlib.suppress(OSError, IndexError):
        while pid > 1:
            with open("/proc/%d/stat" % pid, "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
            found.add(pid)
    return found
