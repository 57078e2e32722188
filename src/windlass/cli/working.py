"""The progress line of the command that runs now; by `progress(args)` a command says what it does meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.run.progress import Working

_lines: list[Working] = []
"""That of the running command; a list, so that a command may run another one."""


@contextmanager
def working(text: str | None) -> Iterator[None]:
    """Show this and how long it takes, on a terminal and after two seconds; None: the command shows itself."""
    if text is None:
        yield
        return
    with Working(sys.stderr, text) as line:
        _lines.append(line)
        try:
            yield
        finally:
            _lines.pop()


def tell(text: str) -> None:
    """What the command does now."""
    if _lines:
        _lines[-1].tell(text)


def clear() -> None:
    """Make room for a line of words; the progress is drawn again below it."""
    if _lines:
        _lines[-1].clear()
