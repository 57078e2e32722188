"""A sign of life for the watcher of this node: the step and the time, in one small local file, once a second."""

from __future__ import annotations

import os
import time

PERIOD_S = 1.0


class Heartbeat:
    """Writes `<step> <unix time>` into the file that the launcher named; does nothing where it named none."""

    def __init__(self, path: str | None) -> None:
        self.next_s = float("inf")
        self._handle: int | None = None
        if path:
            try:
                self._handle = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_TRUNC | os.O_CLOEXEC, 0o600
                )
                self.next_s = 0.0
            except OSError:
                return  # the watcher then falls back to output and exit codes

    def beat(self, step: int, now_s: float) -> None:
        """Write; `next_s` is then the monotonic time of the next one. The caller compares, to save the call."""
        self.next_s = now_s + PERIOD_S
        if self._handle is not None:
            try:
                # Fixed width: a reader never sees the tail of a longer former line.
                os.pwrite(self._handle, f"{step:>15d} {time.time():>18.3f}\n".encode(), 0)
            except OSError:
                self.close()

    def close(self) -> None:
        """No more signs of life."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self.next_s = float("inf")
