"""What a command has to say, before anybody decides how to show it."""

from __future__ import annotations

from dataclasses import dataclass


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
