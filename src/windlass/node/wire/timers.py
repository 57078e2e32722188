"""Run jobs later on one thread, or soon on a pool of threads.

`Pool` is lighter than an executor: no futures, and one wake-up per job.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
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
        """Run `job` once after `delay_s`, unless closed before. Jobs must be short."""
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


class Pool:
    """Up to `most` threads. A new thread starts when a job finds all others busy."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` soon on one of the threads. Raises `RuntimeError` after `close`, or if no thread can start."""
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            grow = self._idle <= 0 and self._threads < self._most
            self._threads += grow
            self._idle -= 1
        if grow:
            self._grow()
        self._jobs.put(job)

    def allow(self, most: int) -> None:
        """Set the maximum number of threads."""
        self._most = max(self._most, most)

    def _grow(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                if self._threads > 0:
                    return  # the other threads run the job
                self._idle += 1
            raise

    def close(self) -> None:
        """Accept no new jobs. Each thread ends after its current jobs."""
        with self._lock:
            self._closed = True
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait after `close` until all threads have ended. Return False if some are still running after the timeout."""
        with self._ended:
            return self._ended.wait_for(lambda: self._threads == 0, timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
            if job is None:
                with self._ended:
                    self._threads -= 1
                    self._ended.notify_all()
                return
            try:
                job()
            except Exception:
                log.exception("job failed")
