"""Identify processes safely, and find and kill processes by an environment mark.

The kernel reuses process numbers. A process is therefore identified by its number, its start time and the boot of its
machine. A mark is an entry in the environment of a process. `kill_marked` finds processes with a mark even if they left
their process group or session.

Node code and the user's process import this module, so it uses only the standard library and runs on Python 3.9.
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
    """One process of one machine, in a form that can be stored and looked up again."""

    host: str
    pid: int
    started: str
    """In the kernel's clock ticks since the machine's boot."""
    boot: str
    """This boot of the machine, and the PID namespace (the container) in which the number is valid."""

    def alive(self) -> bool | None:
        """Return whether the process runs. None on another machine or in another container, where that is unknown."""
        if self.boot != boot():
            return None
        return self.started != "" and start_of(self.pid) == self.started


def own_environ() -> MutableMapping[str, str]:
    """Return the environment of this process, for code on nodes and in ranks."""
    return os.environ


def this_process() -> Process:
    return Process(socket.gethostname(), os.getpid(), start_of(os.getpid()), boot())


def start_of(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks. Empty if it does not exist or is a zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""


def boot() -> str:
    """Return an identifier of this boot and this PID namespace. The host name if neither can be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return "%s %s" % (file.read().strip(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return socket.gethostname()


def kill_marked(mark: bytes, patience_s: float = 5.0, session: int = 0) -> int:
    """Kill all processes with this mark, including new ones, for up to `patience_s`.

    Also kills the processes of `session` and of sessions that marked processes lead: a program that sets its title
    overwrites its environment. Does not kill this process or its ancestors. Returns the number of killed processes.
    """
    spared, sessions = _ancestors(), {session} - {0}
    killed: set[int] = set()
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        found = marked(mark)
        sessions.update(pid for pid in found if _session_of(pid) == pid)
        alive = {*found, *_members(sessions)} - spared
        if not alive:
            break
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    return len(killed)


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _members(sessions: set[int]) -> list[int]:
    """Return the running processes of these sessions."""
    if not sessions:
        return []
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if _session_of(pid) in sessions and start_of(pid)]


def marked(mark: bytes) -> list[int]:
    """Return the processes that started with this entry in their environment. Zombies have no environment."""
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
