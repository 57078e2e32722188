"""Threads that take jobs from one queue. Lighter than an executor: no futures, and one wake-up per job."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger("windlass.cache")


class Pool:
    """Up to `most` threads, started when jobs find all others busy."""

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
        """Runs `job` soon on one of the threads. `RuntimeError` after `close`, or where not one thread can be had."""
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
        """From now on up to so many threads."""
        self._most = max(self._most, most)

    def _grow(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                if self._threads > 0:
                    return  # the others get to it
                self._idle += 1
            raise

    def close(self) -> None:
        """No new jobs; threads end when they are done with theirs."""
        with self._lock:
            self._closed = True
            threads = self._threads
        for _ in range(threads):
            self._jobs.put(None)

    def wait(self, timeout_s: float) -> bool:
        """After `close`: until all threads have ended; False where some have not in time."""
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
