"""The progress line of long work: redrawn in place on a terminal, and erased when the work ends.

In a pipe it prints nothing, or one line a minute if the output is a log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from windlass.base.notation.style import columns_of, for_terminal

_LOG_EVERY_S = 60.0
AFTER_S = 2.0
"""Work that takes less time shows nothing."""
_TICK_S = 0.25


class Progress:
    """Shows the progress of some work. Every text starts with `what`."""

    def __init__(
        self, out: TextIO, *, clock: Callable[[], float] = time.monotonic, log_every_s: float | None = _LOG_EVERY_S
    ) -> None:
        self._out = out
        self._clock = clock
        self._log_every_s = log_every_s
        self._live = out.isatty()
        self._shown = False
        self._last = clock()
        self._lock = threading.Lock()
        self.what = ""

    def show(self, text: str) -> None:
        line = for_terminal(f"{self.what}: {text}" if self.what else text)
        with self._lock:
            if self._live:
                self._write(f"\r\x1b[2K{line[: columns_of(self._out) - 1]}")
                self._shown = True
            elif self._log_every_s is not None and self._clock() - self._last >= self._log_every_s:
                self._last = self._clock()
                self._write(line + "\n")

    def clear(self) -> None:
        with self._lock:
            if self._shown:
                self._write("\r\x1b[2K")
                self._shown = False

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            pass  # the reader is gone, but the work continues


class Working:
    """Progress of work that has no measure: shows the activity and its duration after `AFTER_S`.

    A context manager. The line is erased at its end and on interruption.
    """

    def __init__(self, out: TextIO, text: str, *, after_s: float = AFTER_S) -> None:
        self._progress = Progress(out, log_every_s=None)
        self._progress.what = "windlass"
        self._live = out.isatty()
        self._text = text
        self._began = time.monotonic()
        self._after_s = after_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)

    def tell(self, text: str) -> None:
        """Set the current activity."""
        self._text = text

    def clear(self) -> None:
        """Erase the line to print another one. The next tick draws it again."""
        self._progress.clear()

    def __enter__(self) -> Working:
        if self._live:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(4 * _TICK_S)
        self._progress.clear()

    def _draw(self) -> None:
        if self._done.wait(self._after_s):
            return
        while True:
            self._progress.show(f"{self._text} … {time.monotonic() - self._began:.0f} s")
            if self._done.wait(_TICK_S):
                return
