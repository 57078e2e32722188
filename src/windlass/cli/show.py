"""How the text of a command reaches its reader: a terminal gets it folded and in colour, a pipe as it is."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TextIO

from windlass.base.notation.style import folded, for_terminal, in_colour, painted, width_of
from windlass.base.settings import current_environ
from windlass.cli.working import clear


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
