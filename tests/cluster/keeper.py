"""Keeps the daemons of a test cluster, and everything that they start, within reach of the test session.

Run as a program: `keeper.py HOSTS`. It puts the file HOSTS in the place of /etc/hosts, for itself and what it starts
alone, so that node names resolve on the nodes as they do on a real cluster. Then it reads one JSON request per line
from stdin and answers each with one line: `{"start": NAME, "argv": [...], "log": PATH}`, `{"stop": NAME}`.

It makes itself the reaper of orphans, so that slurmd's step daemons, which cut loose from slurmd, and whatever ranks
leave behind stay its descendants. When stdin ends, because the test session closed it or was killed, it kills all of
them. Nothing of the cluster outlives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_MS_BIND = 0x1000
_MS_REC_SLAVE = 0x4000 | 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


def parents() -> dict[int, int]:
    """Parent of every living process of the machine; zombies are left out."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    found[int(folder.name)] = int(fields[1])
    return found


def descendants(root: int) -> set[int]:
    """Every living process below `root`."""
    below: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        below.setdefault(parent, []).append(pid)
    found: set[int] = set()
    front = [root]
    while front:
        front = [child for pid in front for child in below.get(pid, ()) if child not in found]
        found.update(front)
    return found


def kill_all_below(root: int, *, timeout_s: float) -> bool:
    """Kill until nothing is left, because a process may fork between the look and the kill."""
    end = time.monotonic() + timeout_s
    while alive := descendants(root):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class _Daemons:
    """The named children. `reap` takes every end, also of orphans that became our children; it is the only one that
    waits for a pid. One thread: forking beside threads is asking for a deadlock."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.ended: set[int] = set()

    def start(self, name: str, argv: list[str], log: str) -> int:
        with Path(log).open("ab") as out:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_me,  # noqa: PLW1509 (this program has one thread)
            )
        child.returncode = 0  # so that this object does not wait for it
        self.pids[name] = child.pid
        return child.pid

    def stop(self, name: str, *, timeout_s: float = 10) -> bool:
        pid = self.pids.pop(name)
        end = time.monotonic() + timeout_s
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        while pid not in self.ended and time.monotonic() < end:
            time.sleep(0.01)
            self.reap()
        if pid in self.ended:
            return True
        os.kill(pid, signal.SIGKILL)
        return False

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self.ended.add(pid)

    def answer(self, request: dict[str, Any]) -> object:
        if "start" in request:
            return self.start(request["start"], request["argv"], request["log"])
        return self.stop(request["stop"])


def use_hosts_file(path: str) -> None:
    """A mount namespace of our own, in which `path` is /etc/hosts. Mounts made outside still arrive, ours stay in."""
    for failed in (
        _libc.unshare(_CLONE_NEWNS),
        _libc.mount(None, b"/", None, _MS_REC_SLAVE, None),
        _libc.mount(path.encode(), b"/etc/hosts", None, _MS_BIND, None),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), f"cannot put {path} in the place of /etc/hosts")


def _die_with_me() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which closes our stdin in its own time
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    use_hosts_file(sys.argv[1])
    daemons = _Daemons()
    said = b""
    while True:
        daemons.reap()
        if not select.select([0], [], [], 0.05)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            break
        *lines, said = (said + chunk).split(b"\n")
        for line in lines:
            print(json.dumps(daemons.answer(json.loads(line))), flush=True)
    kill_all_below(os.getpid(), timeout_s=30)


if __name__ == "__main__":
    main()
