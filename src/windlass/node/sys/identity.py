"""Which process is meant: a number alone comes again, so its start time goes with it, and the machine's start too.

Travels to the nodes and lives in the user's process: standard library, Python 3.9.

Processes that carry a mark, an entry of their environment: found and killed wherever they have gone.

Travels to the nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import MutableMapping
from typing import NamedTuple


class Process(NamedTuple):
    """One process of one machine, as it can be written down and looked up again."""

    host: str
    pid: int
    started: str
    """In the kernel's ticks since the machine's start."""
    boot: str
    """This start of that machine, and the view of processes (the container) in which the number counts."""

    def alive(self) -> bool | None:
        """Whether it runs; None where that cannot be told from here: on another machine, in another container."""
        if self.boot != boot():
            return None
        return self.started != "" and start_of(self.pid) == self.started


def own_environ() -> MutableMapping[str, str]:
    """The environment of this process, for code on nodes and in ranks."""
    return os.environ


def this_process() -> Process:
    return Process(socket.gethostname(), os.getpid(), start_of(os.getpid()), boot())


def start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty where there is none, or one that has ended (a zombie)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""


def boot() -> str:
    """This start of this machine, and this view of its processes; the machine's name where neither can be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return "%s %s" % (file.read().strip(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return socket.gethostname()


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
