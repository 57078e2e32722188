"""Send the results of a rank as messages in its standard output. Runs inside ranks: standard library only."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from windlass.node.sys import messages as frames


class ResultWriter:
    """Send each message at once, so that an interrupt does not lose earlier measurements."""

    def __init__(self, out: int = 1) -> None:
        self._writer = frames.MessageWriter(0, out)  # the launcher labels the lines of ranks

    def send(self, kind: str, **values: Any) -> None:
        sys.stdout.flush()
        self._writer.send(kind=kind, **values)


class ResultReader(frames.MessageReader):
    """Read the messages of one rank."""

    def read_line(self, line: str) -> dict[str, Any] | None:
        message = super().read_line(line)
        return message if message is not None and "kind" in message else None


def messages(lines: Iterable[tuple[int, str]]) -> list[tuple[int, dict[str, Any]]]:
    """Return all messages in the output of several ranks, as (rank, message), in the order of completion."""
    readers: dict[int, ResultReader] = {}
    found = []
    for rank, text in lines:
        message = readers.setdefault(rank, ResultReader()).read_line(text)
        if message is not None:
            found.append((rank, message))
    return found
