"""The result of a command and its output: folded and coloured on a terminal, unchanged in a pipe.

Also the progress line of the running command.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from windlass.base.notation.style import folded, for_terminal, in_colour, painted, width_of
from windlass.base.settings import current_environ
from windlass.run.progress import Working

_lines: list[Working] = []
"""The progress line of the running command. It is a list, because a command may run another one."""


@contextmanager
def working(text: str | None) -> Iterator[None]:
    """Show this text and the elapsed time on a terminal after two seconds. None: the command shows its own progress."""
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
    """Set the text of the progress line."""
    if _lines:
        _lines[-1].tell(text)


def clear() -> None:
    """Clear the progress line before a message is printed. It is drawn again below the message."""
    if _lines:
        _lines[-1].clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """`text` for people, `data` for `--json` (anything msgspec can encode), and the exit code."""

    text: str = ""
    data: object = None
    exit_code: int = 0
    coloured: bool = False
    """The text already contains colours for a terminal."""
    foreign: bool = False
    """The text comes from another source (a log, a script). windlass does not colour or fold it."""
    verbatim: frozenset[str] = frozenset()
    """Lines of the text that are not folded: commands to copy."""


def for_stream(
    text: str,
    stream: TextIO,
    *,
    own_colours: bool = False,
    foreign: bool = False,
    verbatim: Collection[str] = (),
    pipe: bool = False,
) -> str:
    """Format the text for this stream.

    `own_colours`: the text already contains colours. `foreign`: the text comes from another source and is not coloured
    or folded. `verbatim`: lines that are not folded. `pipe`: COLUMNS also applies to a pipe.
    """
    live, environ = stream.isatty(), current_environ()
    if live:
        text = for_terminal(text, coloured=own_colours)
    if foreign:
        return text
    if width := width_of(stream, environ, pipe=pipe):
        text = folded(text, width, verbatim)
    return painted(text) if in_colour(live, environ) else text


def say(text: str) -> None:
    """Print a message to standard error, in addition to the result of a command."""
    clear()
    print(for_stream(text, sys.stderr), file=sys.stderr, flush=True)
