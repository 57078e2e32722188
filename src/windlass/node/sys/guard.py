"""A guard process that cleans up after a process that was killed (SIGKILL, out of memory).

The kernel then ends the ranks (`pdeathsig`), but not their children: loader workers, servers, daemons in a separate
session. The guard is a fork that reads a pipe. If the pipe closes without a byte, the guarded process has died, and the
guard kills every process with the mark in its environment.
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
    """Run a guard process during the block, which cleans up if this process is killed.

    The guard then kills all processes of this user whose environment contains `mark` (in the form NAME=value), and
    calls `clean`. Enter the block before there are threads or children.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    guard = os.fork()
    if guard == 0:
        os.close(writer)
        _wait_and_clear(reader, os.fsencode(mark), clean)
    os.close(reader)
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):  # the guard was killed
            os.write(writer, _ORDERLY_END)
        os.close(writer)
        _collect(guard)


def _collect(pid: int) -> None:
    end = time.monotonic() + 1.0
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
            time.sleep(0.005)


def _wait_and_clear(reader: int, mark: bytes, clean: Callable[[], None]) -> None:
    """Main function of the guard. It must not keep our streams open, because readers wait for their end."""
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
