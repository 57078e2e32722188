"""Text of windlass as a person at a terminal sees it: folded to the width, status words and headings in colour. Pure.

Commands make plain text; this is the one place that knows how it looks. Pipes and files get the plain text.

Text that others may have written, as a terminal may show it.
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
"""Where a fact is from; may have been folded."""
_MARK_KIND = {"note:": "faint", "warning:": "warn", "error:": "bad"}
_COLUMN = re.compile(r"^(?P<indent> *)(?P<key>\S.{0,22}?(?: {2,}|: ))(?=\S)")
_ALREADY = re.compile(r"^\s*(?:\||[#│┌└├])|\\$|\x1b")
"""Lines that are laid out already: drawings, comments of scripts, command lines that go on, those with colours."""
_COMMAND = re.compile(r"^\s+(?:\$ |windlass )")
"""A line to copy."""
_QUOTED = re.compile(r"`[^`\n]+`")
_BLANK = "\0"
"""Stands for a blank between backquotes while lines are folded: what they quote is copied, too."""
_SCRIPT = "rank script"
"""The heading from which on a plan is a script, which nobody may fold."""
_MAX_HEADING = 60


def in_colour(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether to colour: on a terminal that can. NO_COLOR says not to, FORCE_COLOR and CLICOLOR_FORCE to do it in a
    pipe too."""
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in {"", "0"} for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return is_terminal and environ.get("TERM", "") not in {"", "dumb"} and environ.get("CLICOLOR") != "0"


def colour(text: str, kind: str) -> str:
    return f"\x1b[{_CODES[kind]}m{text}{RESET}"


def painted(text: str) -> str:
    """Status words at the beginning of lines, marks of hints, headings and sources in colour."""
    lines = _SOURCE.sub(lambda match: _each_line(match[0], "faint"), text).split("\n")
    after = [*lines[1:], ""]
    return "\n".join(_painted_line(line, following) for line, following in zip(lines, after, strict=True))


def _each_line(text: str, kind: str) -> str:
    """Every line of it coloured by itself, but for the blanks before it."""
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
    """Paragraphs of prose with their lines joined and broken anew at so many columns. Indented lines, drawings and
    commands stay as they are."""
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
    """No line longer than so many columns, as far as words allow: broken at spaces, and continued below the text that
    it continues. Lines of `verbatim`, commands and what stands between backquotes stay whole."""
    lines = text.split("\n")
    end = lines.index(_SCRIPT) if _SCRIPT in lines else len(lines)
    pieces = (piece for line in lines[:end] for piece in ([line] if line in verbatim else _pieces(line, columns)))
    return "\n".join((*pieces, *lines[end:]))


def _pieces(line: str, columns: int) -> list[str]:
    if len(line) <= columns or _ALREADY.search(line) or _COMMAND.match(line):
        return [line]
    match = _COLUMN.match(line)
    indent = match.end() if match and match.end() <= columns // 2 else len(line) - len(line.lstrip()) + 2
    # The blanks of the first line are what aligns it: they are no place to break, and stay as they are.
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
    """Rows of a table with its columns aligned, two spaces between them; those of `right` to the right."""
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
