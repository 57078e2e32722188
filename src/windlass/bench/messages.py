"""How a rank sends its results: lines of its standard output behind a mark, so that every launcher carries them.

Nothing but the output of ranks reaches the machine that started them on every site, and it is kept in one file per
node. Values are cut into short lines: some launchers label long ones in the middle. Runs inside ranks: stdlib only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, TextIO

MARK = "@windlass-bench "
_LINE_CHARACTERS = 900


def message_lines(number: int, message: dict[str, Any]) -> list[str]:
    """One message as lines: mark, number, part/parts, text."""
    text = json.dumps(message, separators=(",", ":"))
    parts = [text[start : start + _LINE_CHARACTERS] for start in range(0, len(text), _LINE_CHARACTERS)]
    return [f"{MARK}{number} {part + 1}/{len(parts)} {piece}" for part, piece in enumerate(parts)]


class MessageWriter:
    """Sends messages, numbered, each flushed at once: what was measured before an interrupt is kept."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._number = 0

    def send(self, kind: str, **values: Any) -> None:
        self._out.write("\n".join(message_lines(self._number, {"kind": kind, **values})) + "\n")
        self._out.flush()
        self._number += 1


class MessageReader:
    """Puts one rank's messages together from its lines, in any mixture with other output."""

    def __init__(self) -> None:
        self._parts: dict[int, list[str]] = {}

    def read_line(self, line: str) -> dict[str, Any] | None:
        """The message that this line completes, or None. Torn and foreign lines are passed over."""
        at = line.find(MARK)
        if at < 0:
            return None
        fields = line[at + len(MARK) :].split(" ", 2)
        if len(fields) != 3 or not fields[0].isdecimal():
            return None
        part, _, parts = fields[1].partition("/")
        if not part.isdecimal() or not parts.isdecimal():
            return None
        held = self._parts.setdefault(int(fields[0]), [])
        if int(part) != len(held) + 1:
            return None
        held.append(fields[2])
        if len(held) < int(parts):
            return None
        try:
            message = json.loads("".join(self._parts.pop(int(fields[0]))))
        except ValueError:
            return None
        return message if isinstance(message, dict) and "kind" in message else None


def messages(lines: Iterable[tuple[int, str]]) -> list[tuple[int, dict[str, Any]]]:
    """All messages in the output of several ranks, as (rank, message), in the order in which they were completed."""
    readers: dict[int, MessageReader] = {}
    found = []
    for rank, text in lines:
        message = readers.setdefault(rank, MessageReader()).read_line(text)
        if message is not None:
            found.append((rank, message))
    return found
