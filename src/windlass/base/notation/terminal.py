"""Text that others may have written, as a terminal may show it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import TextIO

_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")
_CONTROL_BUT_COLOURS = re.compile(rf"(?!\x1b\[[0-9;]{{1,20}}m){_CONTROL.pattern}")


def for_terminal(text: str, *, coloured: bool = False) -> str:
    """Text of plans and logs. What would move the cursor or change the terminal is shown as `\\x1b` and the like; lines
    and tabs stay, with `coloured` also colours. Files and pipes get every byte as it was."""
    pattern = _CONTROL_BUT_COLOURS if coloured else _CONTROL
    return pattern.sub(lambda match: ascii(match[0])[1:-1], text)


def columns_of(stream: TextIO) -> int:
    """Columns of a terminal; 80 where nobody knows."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def width_of(stream: TextIO, environ: Mapping[str, str], *, pipe: bool = False) -> int | None:
    """How many columns text for this stream may take: COLUMNS, else those of its terminal. None: a pipe, whose reader
    may look for a line as it is; with `pipe` COLUMNS counts there, too."""
    if not stream.isatty() and not pipe:
        return None
    said = environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return int(said)
    return columns_of(stream) if stream.isatty() else None
