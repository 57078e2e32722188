"""Detect ranks that never connected to each other, from the connections of the ranks on the first node.

Such ranks have each done the whole work alone and ended with code 0. Only a certain case is reported: the script names
a way to train together, the machine can be examined, its ranks never held a TCP socket, and no process ever listened at
the rendezvous. A script that uses no TCP at all (MPI through shared memory) does not match these conditions. In case of
doubt, nothing is reported.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from windlass.model.plan import Plan
from windlass.node.sys.reading import open_plain, read_bytes, read_text
from windlass.plan.ray import INDEPENDENT
from windlass.plan.render.variables import JobFacts
from windlass.run.failure.ends import read_seats
from windlass.run.folder import RunFolder
from windlass.run.jobs import StartedJob

_EVERY_S = 0.3
_MIN_LOOKS = 3
_MAX_RANKS = 16
_MAX_SCRIPT_BYTES = 1 << 20
_TOGETHER = re.compile(
    rb"torch\.distributed|DistributedDataParallel|\bAccelerator\(|\bTrainingArguments\b|\blightning\b|\bdeepspeed\b"
)
_ELSEWHERE = re.compile(rb"\bMPI\b|mpi4py|horovod|['\"]mpi['\"]")
_NET = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class _Socket(NamedTuple):
    """A line of /proc/net/tcp."""

    ends: tuple[str, str]
    """Local and remote address with port, in the kernel's format."""
    inode: str

    @property
    def ports(self) -> tuple[int, int]:
        local, remote = (int(end.rpartition(":")[2], 16) for end in self.ends)
        return local, remote


class Meeting:
    """Checks at intervals until there is a sign that the ranks met. `never` is true if no sign was found."""

    def __init__(self, plan: Plan, folder: RunFolder, facts: JobFacts) -> None:
        self._seats = folder.part("where")
        self._ranks = min(plan.ranks_per_node, _MAX_RANKS)
        self._port = facts.master_port
        self._looks = 0
        self._looked_s = 0.0
        self._doubt = plan.world_size == 1 or plan.container is not None or not _trains_together(plan)
        self._before: frozenset[tuple[str, str]] = frozenset()
        if not self._doubt:
            self._doubt = self._cannot_look()

    def _cannot_look(self) -> bool:
        """Record what an earlier run has left at this port."""
        try:
            self._before = frozenset(socket.ends for socket in _connections() if self._port in socket.ports)
        except (OSError, ValueError):
            return True
        return False

    def look(self, job: StartedJob) -> None:
        """Called about ten times a second while the ranks run."""
        now = time.monotonic()
        if self._doubt or now - self._looked_s < _EVERY_S:
            return
        self._looked_s = now
        try:
            self._doubt = self._sign()
        except (OSError, ValueError):
            self._doubt = True

    def never(self) -> bool:
        """Call this after the ranks ended with code 0: a closed connection stays visible for a minute."""
        if self._doubt or self._looks < _MIN_LOOKS:
            return False
        try:
            return not any(self._is_ours(socket) for socket in _connections())
        except (OSError, ValueError):
            return False

    def _sign(self) -> bool:
        """Return whether there is any sign of a meeting so far."""
        pids = [seat.pid for seat in read_seats(self._seats) if seat.rank < self._ranks]
        held = {inode for pid in pids for inode in _sockets(pid)}
        self._looks += bool(pids)
        return any(socket.inode in held or self._is_ours(socket) for socket in _connections())

    def _is_ours(self, socket: _Socket) -> bool:
        return self._port in socket.ports and socket.ends not in self._before


def _trains_together(plan: Plan) -> bool:
    """Return whether the script names a way to train as one job, and none that works without TCP."""
    request = plan.request
    if request.kind != "script" or not request.command or INDEPENDENT in request.options:
        return False
    path = Path(request.cwd or ".") / request.command[0]
    try:
        text = read_bytes(path, _MAX_SCRIPT_BYTES, follow=True)
    except OSError:
        return False
    return bool(_TOGETHER.search(text)) and not _ELSEWHERE.search(text)


def _connections() -> Iterator[_Socket]:
    """Yield every TCP socket of this machine, including those closed a short time ago."""
    for path in _NET:
        with contextlib.suppress(FileNotFoundError), open_plain(path) as stream:
            next(stream, b"")
            for line in stream:
                fields = line.decode().split()
                yield _Socket(ends=(fields[1], fields[2]), inode=fields[9])


def _sockets(pid: int) -> Iterator[str]:
    """Yield the inodes of the sockets that a rank, or a process that its script started, holds open."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = read_text(f"/proc/{pid}/task/{pid}/children").split()
        for process in (str(pid), *children):
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    target = str(Path(entry).readlink())
                    if target.startswith("socket:["):
                        yield target[len("socket:[") : -1]
