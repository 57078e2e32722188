"""Waiting in tests, always with a deadline, and saying what was waited for when it passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WaitedTooLongError(AssertionError):
    """A condition did not come true in time."""


def wait_until(
    condition: Callable[[], T], *, timeout_s: float, what: str, every_s: float = 0.05, state: Callable[[], str] = str
) -> T:
    """The first true answer of `condition`. After `timeout_s` the test fails with `what` and, if given, `state()`."""
    end = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= end:
            detail = state()
            raise WaitedTooLongError(f"after {timeout_s:g} s still not: {what}" + (f"\n{detail}" if detail else ""))
        time.sleep(every_s)
