"""The result of a command, and how it reaches its reader: folded and in colour on a terminal, unchanged in a pipe.

Also the progress line of the running command.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from windlass.base.notation.style import folded, for_terminal, in_colour, painted, width_of
from windlass.base.settings import current_environ
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """`text` for people, `data` for `--json` (anything msgspec can encode), and the exit code."""

    text: str = ""
    data: object = None
    exit_code: int = 0
    coloured: bool = False
    """The text holds colours of our own, for a terminal."""
    foreign: bool = False
    """Others wrote the text (a log, a script): none of its words are ours to colour or its lines ours to fold."""
    verbatim: frozenset[str] = frozenset()
    """Lines of the text that stay whole: commands to copy."""


def for_stream(
    text: str,
    stream: TextIO,
    environ: Mapping[str, str],
    *,
    own_colours: bool = False,
    foreign: bool = False,
    verbatim: Collection[str] = (),
    pipe: bool = False,
) -> str:
    """The text as this stream gets it. `own_colours`: it holds some already. `foreign`: others wrote it, so that
    nothing in it is a word of ours. `verbatim`: lines that stay whole. `pipe`: COLUMNS counts in a
    pipe, too."""
    live = stream.isatty()
    if live:
        text = for_terminal(text, coloured=own_colours)
    if foreign:
        return text
    if width := width_of(stream, environ, pipe=pipe):
        text = folded(text, width, verbatim)
    return painted(text) if in_colour(live, environ) else text


def say(text: str) -> None:
    """Words beside the result of a command, on standard error."""
    clear()
    print(for_stream(text, sys.stderr, current_environ()), file=sys.stderr, flush=True)
