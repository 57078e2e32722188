"""Every command line of windlass that the documents print in a block has options that exist."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from looping import each
from markdown_links import ROOT, pages
from windlass.cli.main import command_names, command_parser
from windlass.errors import WindlassError

_BLOCK = re.compile(r"^ *```(?:sh|bash|console)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NAMES = "|".join(sorted(command_names(), key=len, reverse=True))
_COMMAND = re.compile(rf"^ *\$? *(windlass (?:{_NAMES})(?![-\w])(?:[^\n\\]|\\\n)*)", re.MULTILINE)
_FOR_PEOPLE = re.compile(r"…|\.\.\.|\[[^\]]*\]|[A-Za-z]\|[A-Za-z]|   +[a-z]|\((?:the same|see below)|\bCASE\b")
"""Abbreviated, with alternatives, or with its explanation beside it: not for a shell."""


def command_lines(page: Path) -> list[str]:
    blocks = "\n".join(_BLOCK.findall(page.read_text()))
    found = [match[1].replace("\\\n", " ").strip() for match in _COMMAND.finditer(blocks)]
    return [line for line in found if " " in line[9:] and not _FOR_PEOPLE.search(line.split(" # ")[0])]


def words_of(line: str) -> list[str]:
    """The words up to a comment, a pipe or the next command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            break
        words.append(word)
    return words


@functools.cache
def parser_of(name: str) -> tuple[Any, ArgumentParser]:
    return command_parser(name)


def complaint(line: str) -> str:
    """What windlass says against a command line; empty where it can be parsed."""
    words = words_of(line)[1:]
    module, parser = parser_of(words[0])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            module.parse(parser, words[1:]) if hasattr(module, "parse") else parser.parse_args(words[1:])
    except SystemExit as error:
        return said.getvalue() if error.code else ""
    except WindlassError as error:
        return f"{error.message} ({error.hint})"
    return ""


@each("page", [page for page in pages() if command_lines(page)], ids=lambda p: str(p.relative_to(ROOT)))
def test_printed_command_lines_can_be_parsed(page: Path) -> None:
    wrong = {line: complaint(line) for line in command_lines(page) if complaint(line)}
    assert wrong == {}


def test_a_wrong_option_is_found() -> None:
    assert "--nodez" in complaint("windlass plan --nodez 2 train.py")
    assert complaint("windlass run train.py --nodez 2 | tail -1  # the script's own") == ""
    assert sum(len(command_lines(page)) for page in pages()) > 150


def test_every_command_has_an_example_in_the_reference() -> None:
    said = {words_of(line)[1] for line in command_lines(ROOT / "docs" / "reference" / "commands.md")}
    assert sorted(set(command_names()) - said) == []
