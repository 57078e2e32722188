"""A stranger that acts while a test goes on: a child with another uid, which is asked to stop and says what it did."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - the stranger cannot read our Python's folder when a name is first looked up
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterator

from attacks.stranger import UID, require_stranger

Counts = dict[str, int]
Act = Callable[[Callable[[], None], Callable[[], bool]], Counts]
"""Given: a call that says that the attack is set up, and one that tells whether to go on. Returns what was counted."""


class Stranger:
    """A running attack. `stop` ends it and returns its counts."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self._pid = pid
        self._line = line
        self._counts: Counts | None = None

    def wait_ready(self) -> None:
        self._line.settimeout(60)
        assert self._line.recv(1) == b"r", "the attack could not be set up"

    def stop(self) -> Counts:
        if self._counts is None:
            self._line.sendall(b"s")
            self._line.settimeout(60)
            data = b""
            while more := self._line.recv(4096):
                data += more
            self._counts = json.loads(data)
        return self._counts

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


@contextlib.contextmanager
def stranger(act: Act) -> Iterator[Stranger]:
    """Runs `act` as another user beside the test; it is set up on entry. Start it before anything with threads."""
    require_stranger()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _run(act, theirs)
    theirs.close()
    running = Stranger(pid, ours)
    try:
        running.wait_ready()
        yield running
    finally:
        running.end()
        ours.close()


def _run(act: Act, line: socket.socket) -> None:
    try:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
        line.setblocking(False)

        def goes_on() -> bool:
            with contextlib.suppress(BlockingIOError):
                line.recv(1)
                return False
            return True

        counts = act(lambda: line.sendall(b"r"), goes_on)
        line.setblocking(True)
        line.sendall(json.dumps(counts).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
