"""Signals that windlass receives during a run: requests to stop, and signals for the ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from windlass.base.procs.command import pdeathsig

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)
_NOT_A_PERSON = (signal.SIGHUP, signal.SIGALRM)
"""Flux sends both at a time limit, and SIGHUP after SIGTERM when it cancels.

Neither is a second request by a person.
"""
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
"""Schedulers send these before the time limit. Without a handler they would kill windlass."""


@dataclass(slots=True)
class Heard:
    """Signals received so far, oldest first. `wakeup` becomes readable when one arrives."""

    wakeup: int
    stops: list[signal.Signals] = field(default_factory=list)
    for_ranks: list[signal.Signals] = field(default_factory=list)
    before: dict[int, Any] = field(default_factory=dict)
    """The handlers that were set before."""

    @property
    def time_up(self) -> bool:
        """Whether the scheduler has signalled the end of the allocation's time."""
        return signal.SIGALRM in self.stops

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that requested the stop: the end of the allocation's time, otherwise the first one."""
        return signal.SIGALRM if self.time_up else self.stops[0] if self.stops else None

    @property
    def impatient(self) -> bool:
        """Whether a second stop request has arrived. Signals in `_NOT_A_PERSON` do not count."""
        return sum(sig not in _NOT_A_PERSON for sig in self.stops) > 1


_open: list[Heard] = []


@contextlib.contextmanager
def listening() -> Iterator[Heard]:
    """Collect signals instead of dying from them, until the block ends.

    A nested block shares the signals of the outer one. A signal that was ignored before (`nohup`, a background command
    of a script) stays ignored.
    """
    if _open:
        yield _open[-1]
        return
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    heard = Heard(wakeup=reader)

    def hear(number: int, _: object) -> None:
        sig = signal.Signals(number)
        (heard.stops if sig in _STOP else heard.for_ranks).append(sig)

    old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    wanted = [sig for sig in (*_STOP, *_FOR_RANKS) if signal.getsignal(sig) is not signal.SIG_IGN]
    old = {sig: signal.signal(sig, hear) for sig in wanted}
    old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    heard.before.update({int(sig): handler for sig, handler in old.items()})
    _open.append(heard)
    try:
        yield heard
    finally:
        _open.clear()
        signal.set_wakeup_fd(old_wakeup)
        for sig, handler in old.items():
            signal.signal(sig, handler)
        os.close(reader)
        os.close(writer)


def fork_run(act: Callable[[], int]) -> int:
    """Fork a child that drives one run of its own, in its own session. Returns its process id.

    The child exits with the result of `act`. It gets SIGTERM if this process dies. Terminal signals reach only this
    process, which forwards them in its own order.
    """
    ask = pdeathsig(signal.SIGTERM)
    sys.stdout.flush()
    sys.stderr.flush()
    everything = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, everything)
        return pid
    code = 1
    try:
        os.setsid()
        for heard in _open:
            for sig, handler in heard.before.items():
                signal.signal(sig, handler)
        signal.set_wakeup_fd(-1)
        _open.clear()
        ask()
        signal.pthread_sigmask(signal.SIG_SETMASK, everything)
        code = act()
    except KeyboardInterrupt as interrupt:
        code = 128 + int(getattr(interrupt, "signal", signal.SIGINT))
    except BaseException:  # the child must not return into the caller's code
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
