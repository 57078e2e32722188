"""Clears up on this machine after a windlass that was killed outright: by SIGKILL, or because memory ran out.

The kernel then ends the ranks themselves (`pdeathsig`), but not what they have started: loader workers, servers, a
daemon in a session of its own. The guard is a fork of windlass that sleeps on a pipe. When the pipe closes without a
word, windlass is gone, and the guard kills whatever carries the run's mark in its environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from windlass.node.sys.identity import kill_marked

_ORDERLY_END = b"."


@contextlib.contextmanager
def guarded(mark: str, clean: Callable[[], None]) -> Iterator[None]:
    """While the block runs, a guard waits for our death; then it kills all processes of this user whose environment
    holds `mark` (as in NAME=value), and calls `clean`. To be entered before there are threads or children."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    guard = os.fork()
    if guard == 0:
        os.close(writer)
        _wait_and_clear(reader, os.fsencode(mark), clean)
    os.close(reader)
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(writer, _ORDERLY_END)
        os.close(writer)
        _collect(guard)


def _collect(pid: int) -> None:
    end = time.monotonic() + 1.0
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
            time.sleep(0.005)


def _wait_and_clear(reader: int, mark: bytes, clean: Callable[[], None]) -> None:
    """The guard's whole life. It must hold none of our streams: who reads them waits for their end."""
    try:
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(sig, signal.SIG_IGN)
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        if os.read(reader, 1) != _ORDERLY_END:
            kill_marked(mark)
            clean()
    finally:
        os._exit(0)
