"""Signals that reach windlass while a run goes on: requests to stop, and those that are meant for the ranks."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)
_NOT_A_PERSON = (signal.SIGHUP, signal.SIGALRM)
"""Flux sends both at a time limit, and a hang-up after SIGTERM where it cancels: nobody has lost patience."""
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
"""Schedulers send them before the time is up; windlass itself would die of them."""


@dataclass(slots=True)
class Heard:
    """What has arrived so far, oldest first. `wakeup` becomes readable when something does."""

    wakeup: int
    stops: list[signal.Signals] = field(default_factory=list)
    for_ranks: list[signal.Signals] = field(default_factory=list)

    @property
    def time_up(self) -> bool:
        """The scheduler says that the time of the allocation is over."""
        return signal.SIGALRM in self.stops

    @property
    def stopped_by(self) -> signal.Signals | None:
        """What asked to stop: the end of the allocation's time, else what came first."""
        return signal.SIGALRM if self.time_up else self.stops[0] if self.stops else None

    @property
    def impatient(self) -> bool:
        """Whoever asked to stop has asked again."""
        return sum(sig not in _NOT_A_PERSON for sig in self.stops) > 1


_open: list[Heard] = []


@contextlib.contextmanager
def listening() -> Iterator[Heard]:
    """Collects signals instead of dying of them, until the block ends. A block inside of another one shares its
    signals. One that was ignored before (`nohup`, a background command of a script) stays ignored."""
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
