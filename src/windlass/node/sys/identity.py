"""Which process is meant: a number alone comes again, so its start time goes with it, and the machine's start too.

Travels to the nodes and lives in the user's process: standard library, Python 3.9.
"""

from __future__ import annotations

import os
import socket
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
