"""Things to do later, on one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("windlass.cache")


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
        self._thread.start()

    def after(self, delay_s: float, job: Callable[[], None]) -> None:
        """Runs `job` once, `delay_s` from now, unless closed before. Jobs must be short."""
        with self._changed:
            heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._order), job))
            if self._heap[0][2] is job:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._closed:
                    return
                _, _, job = heapq.heappop(self._heap)
            try:
                job()
            except Exception:
                log.exception("timer failed")
