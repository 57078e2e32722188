"""Format text for a terminal: fold it to the width and colour status words and headings. Pure.

Commands produce plain text. Only this module decides on the layout and the colours. Pipes and files get the plain text.

The module also escapes control characters in text from other sources, before a terminal shows it.
"""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TextIO

RESET = "\x1b[0m"
_CODES = {"good": "32", "warn": "33", "bad": "1;31", "live": "36", "hint": "36", "faint": "2", "head": "1"}
_WORDS = {
    "good": ("ok", "done", "good", "finished", "should work"),
    "warn": ("warning", "resumable", "stopped", "unknown"),
    "bad": ("bad", "error", "failed", "killed", "died", "will not work as it is"),
    "live": ("running", "waiting"),
    "faint": ("note", "skipped", "-"),
}
_KIND = {word: kind for kind, words in _WORDS.items() for word in words}
_ANY = "|".join(sorted(map(re.escape, _KIND), key=len, reverse=True))
_STATUS = re.compile(rf"^(?P<before>(?:[\w.-]+: )?)(?P<word>{_ANY})(?= {{2,}}|: |:?$)")
"""`ok       torch: …`, `done  11-16`, `windlass: error: …`, `srun: error: …`"""
_SECOND = re.compile(
    r"^(?P<before>  \S+ +|verdict[^:]*: )(?P<word>ok|warn|warning|error|should work|will not work as it is)(?=: |, |$)"
)
_ENDED = re.compile(r"^(?P<before>windlass: .*?\b)(?P<word>finished|failed|died|killed)\b")
_MARK = re.compile(r"^(?P<before>\s*)(?P<word>→|->|hint:|try:|note:|warning:|error:)(?= )")
_SOURCE = re.compile(r"\[[^\[\]]+,\s+checked\s+\d{4}-\d\d-\d\d\]$|\[builtin:\s+windlass\]$", re.MULTILINE)
"""The source of a fact. The text may already be folded."""
_MARK_KIND = {"note:": "faint", "warning:": "warn", "error:": "bad"}
_COLUMN = re.compile(r"^(?P<indent> *)(?P<key>\S.{0,22}?(?: {2,}|: ))(?=\S)")
_ALREADY = re.compile(r"^\s*(?:\||[#│┌└├])|\\$|\x1b")
"""Lines that already have a layout: drawings, script comments, continued command lines, lines with colours."""
_COMMAND = re.compile(r"^\s+(?:\$ |windlass )")
"""A command line for the user to copy."""
_QUOTED = re.compile(r"`[^`\n]+`")
_BLANK = "\0"
"""Replaces blanks between backquotes while lines are folded. Users copy the quoted text, so it must stay whole."""
_SCRIPT = "rank script"
"""Heading of a plan's script. Lines from here on must not be folded."""
_MAX_HEADING = 60


def in_colour(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Return whether to use colours: on a terminal that supports them.

    NO_COLOR turns colours off. FORCE_COLOR and CLICOLOR_FORCE turn them on in a pipe too.
    """
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in {"", "0"} for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return is_terminal and environ.get("TERM", "") not in {"", "dumb"} and environ.get("CLICOLOR") != "0"


def colour(text: str, kind: str) -> str:
    return f"\x1b[{_CODES[kind]}m{text}{RESET}"


def painted(text: str) -> str:
    """Colour the status words at the beginning of lines, the marks of hints, the headings and the sources."""
    lines = _SOURCE.sub(lambda match: _each_line(match[0], "faint"), text).split("\n")
    after = [*lines[1:], ""]
    return "\n".join(_painted_line(line, following) for line, following in zip(lines, after, strict=True))


def _each_line(text: str, kind: str) -> str:
    """Colour every line separately, without its leading blanks."""
    lines = text.split("\n")
    return "\n".join(line[: len(line) - len(line.lstrip())] + colour(line.lstrip(), kind) for line in lines)


def _painted_line(line: str, following: str) -> str:
    if match := _STATUS.match(line) or _SECOND.match(line) or _ENDED.match(line):
        return f"{match['before']}{colour(match['word'], _KIND[match['word']])}{line[match.end('word') :]}"
    if match := _MARK.match(line):
        kind = _MARK_KIND.get(match["word"], "hint")
        return f"{match['before']}{colour(match['word'], kind)}{line[match.end('word') :]}"
    heading = line and not line[0].isspace() and following.startswith("  ") and len(line) <= _MAX_HEADING
    return colour(line, "head") if heading else line


def filled(text: str, columns: int) -> str:
    """Join the lines of each prose paragraph and break them at `columns`.

    Indented lines, drawings and commands do not change.
    """
    lines: list[str] = []
    open_paragraph = False
    for line in text.split("\n"):
        prose = bool(line) and not line[0].isspace() and not line.startswith("- ") and not _ALREADY.search(line)
        if prose and open_paragraph:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
        open_paragraph = prose
    return "\n".join(
        piece for line in lines for piece in (_wrapped(line, columns) if line and not line[0].isspace() else [line])
    )


def folded(text: str, columns: int, verbatim: Collection[str] = ()) -> str:
    """Break lines at spaces so that no line is longer than `columns`, except for a longer word.

    A continuation line is indented to the text that it continues. Lines of `verbatim`, commands and text between
    backquotes stay whole.
    """
    lines = text.split("\n")
    end = lines.index(_SCRIPT) if _SCRIPT in lines else len(lines)
    pieces = (piece for line in lines[:end] for piece in ([line] if line in verbatim else _pieces(line, columns)))
    return "\n".join((*pieces, *lines[end:]))


def _pieces(line: str, columns: int) -> list[str]:
    if len(line) <= columns or _ALREADY.search(line) or _COMMAND.match(line):
        return [line]
    match = _COLUMN.match(line)
    indent = match.end() if match and match.end() <= columns // 2 else len(line) - len(line.lstrip()) + 2
    # The blanks of the first line align it. They must not be a place to break, and they must not change.
    head, rest = line[:indent], line[indent:]
    pieces = _wrapped(rest, columns - indent)
    if not pieces:
        return [line]
    return [head + pieces[0], *(" " * indent + piece for piece in pieces[1:])]


def _wrapped(text: str, columns: int) -> list[str]:
    whole = _QUOTED.sub(lambda match: match[0].replace(" ", _BLANK), text)
    pieces = textwrap.wrap(
        whole, max(20, columns), break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return [piece.replace(_BLANK, " ") for piece in pieces]


def table_lines(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Align the columns of a table, with two spaces between them. The columns of `right` are right-aligned."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(max(map(len, rows)))]
    return [
        "  ".join(
            cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")
_CONTROL_BUT_COLOURS = re.compile(rf"(?!\x1b\[[0-9;]{{1,20}}m){_CONTROL.pattern}")


def for_terminal(text: str, *, coloured: bool = False) -> str:
    """Escape control characters in text of plans and logs, for a terminal.

    A character that would move the cursor or change the terminal is shown as `\\x1b` and the like. Line breaks and tabs
    stay, and with `coloured` colours stay too. Files and pipes get every byte unchanged.
    """
    pattern = _CONTROL_BUT_COLOURS if coloured else _CONTROL
    return pattern.sub(lambda match: ascii(match[0])[1:-1], text)


def columns_of(stream: TextIO) -> int:
    """Return the columns of a terminal, or 80 if they are unknown."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def width_of(stream: TextIO, environ: Mapping[str, str], *, pipe: bool = False) -> int | None:
    """Return how many columns text for this stream may use: COLUMNS, otherwise those of its terminal.

    Returns None for a pipe, because its reader may search for a whole line. With `pipe`, COLUMNS applies to pipes too.
    """
    if not stream.isatty() and not pipe:
        return None
    said = environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return int(said)
    return columns_of(stream) if stream.isatty() else None
