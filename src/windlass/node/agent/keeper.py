"""Two processes hold the services of a node: the agent, which does the work, and the keeper above it, which waits.

The launcher started the keeper and watches it; the agent is its child. Where the agent is killed (for memory, say), the
keeper takes its place: mounts and caches stay, and it costs a warning. Where the keeper is killed, the agent goes on as
long as the standard input is open. Only when both are gone do the services end by themselves.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

_LOOK_EVERY_S = 10.0


class Kept(NamedTuple):
    """What became of the child. `was_up`: it had called `up` before."""

    code: int
    killed_by: int
    was_up: bool
    asked_to_stop: bool


def run_kept(run: Callable[[Callable[[], None]], int], forwarded: Iterable[int]) -> Kept:
    """Runs `run(up)` in a child to its end; signals of `forwarded` go to the child as well. Call it before there are
    threads. The child never returns from here."""
    told, tell = os.pipe()
    asked: list[int] = []
    child = 0

    def forward(number: int, _frame: object) -> None:
        asked.append(number)
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in forwarded}
    # A signal that came between the fork and the next line would be forwarded to nobody.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, before)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(told)
            code = run(lambda: _say_up(tell))
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(tell)
    status = _wait(child)
    was_up = os.read(told, 1) == b"u"
    os.close(told)
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Kept(0 if killed_by else os.WEXITSTATUS(status), killed_by, was_up, bool(asked))


def _say_up(tell: int) -> None:
    os.write(tell, b"u")
    os.close(tell)


def _wait(child: int) -> int:
    """Until the child has ended. Python runs handlers between its own steps: a signal that comes just before a call
    that blocks would wait with it, so what blocks here is a read that every signal ends."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
            select.select([woken], [], [], _LOOK_EVERY_S)
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(woken)
        os.close(wake)
