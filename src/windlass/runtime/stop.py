"""The request to stop: a signal or the end of the allocation sets a flag.

The ranks act on it at the end of a step, where all ranks can agree.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from windlass.errors import UsageError
from windlass.runtime import codes

# The ranks exchange the number. The largest wins.
WALLTIME = "the allocation ends"
REASONS = ("", "SIGTERM", "SIGUSR2", WALLTIME)
_SIGNALS = {"SIGTERM": 1, "SIGUSR2": 2}
_WALLTIME = 3
_GRACE_S = 60.0
_GRACE_SHARE = 0.1


class StopFlag:
    """Set by SIGTERM and SIGUSR2 between `listen` and `restore`, and by the deadline."""

    def __init__(self, deadline: float | None, *, started: float | None = None) -> None:
        self._deadline = deadline
        self._started = time.time() if started is None else started
        self._pid = os.getpid()
        self._former: dict[int, Any] = {}
        self.reason = 0
        """Index into `REASONS`. 0: no request."""

    def listen(self) -> None:
        """Catch the signals. Outside of the main thread Python allows no handlers, and only the deadline remains."""
        for name, reason in _SIGNALS.items():
            number = getattr(signal, name, None)
            if number is None:
                continue
            try:
                self._former[number] = signal.signal(number, self._note(reason, signal.getsignal(number)))
            except ValueError:
                return

    def restore(self) -> None:
        """Restore the former handlers."""
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def ignore_late(self) -> None:
        """Ignore further signals in a process that has saved and leaves: a second request must not kill it."""
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            try:
                if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, signal.SIG_IGN)
            except ValueError:  # not the main thread
                return

    def check_deadline(self, save_s: float, step_s: float) -> None:
        """Set the flag if a save that starts after the next step could end too late.

        `save_s` is the duration of a save.
        """
        if self._deadline is None or self.reason:
            return
        whole = max(self._deadline - self._started, 0.0)
        margin = max(min(_GRACE_S, _GRACE_SHARE * whole), 0.0) + 2.0 * save_s + 2.0 * step_s
        if time.time() >= self._deadline - margin:
            self.reason = _WALLTIME

    def _note(self, reason: int, former: Any) -> Any:
        def handler(number: int, frame: FrameType | None) -> None:
            if os.getpid() != self._pid:
                # A forked worker inherits the handler. A signal to the worker must terminate it.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            self.reason = self.reason or reason
            if callable(former) and former is not signal.default_int_handler:
                former(number, frame)

        return handler


def find_deadline(environ: Mapping[str, str]) -> float | None:
    """Return when the allocation ends (seconds since 1970), from the launcher or Slurm. None if neither sets it."""
    for name in (codes.DEADLINE, "SLURM_JOB_END_TIME"):
        text = environ.get(name, "")
        if not text:
            continue
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{name}={text!r} is not a time", hint="give seconds since 1970") from None
    return None
