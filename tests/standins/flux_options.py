"""Options of `flux run` and `flux batch` as flux-core 0.88 takes them; an unknown one ends with usage and code 2."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"usage: {self.usage}\n{self.prog}: error: {message}", file=sys.stderr)
        sys.exit(2)


def _common(parser: Parser) -> None:
    add = parser.add_argument
    add("-N", "--nodes", type=int)
    add("-t", "--time-limit")
    add("-q", "--queue")
    add("-B", "--bank")
    add("--job-name")
    add("-o", "--setopt", action="append", default=[])
    add("-S", "--setattr", action="append", default=[])
    add("--env", action="append", default=[])
    add("--env-remove", action="append", default=[])
    add("--requires")
    add("--output")
    add("--error")
    add("--cwd")
    add("--urgency")
    add("--signal")
    add("--dependency")
    add("-x", "--exclusive", action="store_true")
    add("--dry-run", action="store_true")
    add("-v", "--verbose", action="count")


def run_parser(name: str) -> Parser:
    parser = Parser(prog=f"flux {name}", usage=f"flux {name} [OPTIONS...] COMMAND [ARGS...]", allow_abbrev=False)
    _common(parser)
    add = parser.add_argument
    add("-n", "--ntasks", type=int)
    add("-c", "--cores-per-task", type=int, default=1)
    add("-g", "--gpus-per-task", type=int)
    add("--tasks-per-node", type=int)
    add("--gpus-per-node", type=int)
    add("-l", "--label-io", action="store_true")
    add("-u", "--unbuffered", action="store_true")
    add("--taskmap")
    add("command", nargs=argparse.REMAINDER)
    return parser


def batch_parser() -> Parser:
    parser = Parser(prog="flux batch", usage="flux batch [OPTIONS...] [SCRIPT] [ARGS...]", allow_abbrev=False)
    _common(parser)
    add = parser.add_argument
    add("-n", "--nslots", type=int)
    add("-c", "--cores-per-slot", type=int, default=1)
    add("-g", "--gpus-per-slot", type=int)
    add("--wrap", action="store_true")
    add("script", nargs=argparse.REMAINDER)
    return parser


class DirectiveError(Exception):
    """A script whose directives Flux refuses, in its words."""


def directives(script: str, name: str) -> list[str]:
    """Words of the `# flux:` lines. One sentinel throughout, and none after the first command."""
    words: list[str] = []
    sentinel = ""
    disabled = 0
    for number, line in enumerate(script.splitlines(), start=1):
        head, colon, rest = line.partition(":")
        mark = head + colon
        if line.startswith("#") and colon and mark.lstrip("# ").lower() == "flux:":
            if disabled and sentinel:
                raise DirectiveError(
                    f"{name}: line {number}: orphan 'flux:' detected: directives disabled after line {disabled}"
                )
            if disabled:
                continue
            if sentinel and mark != sentinel:
                raise DirectiveError(f"{name}: line {number}: sentinel changed from '{sentinel}' to '{mark}'")
            sentinel = mark
            if re.search(r"[\"']{3}.", rest):
                raise DirectiveError(f"{name}: line {number}: unclosed triple quote: {rest.strip()}")
            lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            lexer.escapedquotes = "\"'"
            words += lexer
        elif line.strip() and not line.startswith("#") and not disabled:
            disabled = number - 1
    return words


def read_script(path: str) -> str:
    """Text of a batch script; raises `DirectiveError` with Flux's words where it is none."""
    try:
        text = Path(path).read_text(errors="surrogateescape")
    except OSError as error:
        raise DirectiveError(f"No such file or directory: '{path}'") from error
    if not text.startswith("#!"):
        raise DirectiveError(f"{path} does not appear to start with '#!'")
    return text
