"""What the exit of a rank waits for: threads of gloo that still hold, or wait for, the interpreter's lock."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.node.sampler.gloo_exit import settle

_SET_NAME = 15


@contextmanager
def thread_of_gloo(busy_s: float) -> Iterator[list[str]]:
    """A thread with the name of gloo's. It waits with a timeout, as for the lock, then without one, as for work."""
    said: list[str] = []
    started, work = threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(_SET_NAME, b"pt_gloo_runloop", 0, 0, 0)
        started.set()
        never = threading.Event()
        never.wait(busy_s)
        said.append("freed")
        work.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield said
    finally:
        work.set()
        thread.join(busy_s + 10)


def test_the_exit_waits_until_a_thread_of_gloo_has_freed_its_collective() -> None:
    with thread_of_gloo(0.2) as said:
        settle(30)
        assert said == ["freed"]


def test_the_exit_does_not_wait_for_a_thread_of_gloo_without_end() -> None:
    with thread_of_gloo(5) as said:
        settle(0.05)
        assert said == []
