"""Help has examples that work, and errors say what to do."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from looping import each
from unit.cli.test_on_a_terminal import on_terminal, plain
from unit.cli.typed import SRC, in_process
from windlass import errors
from windlass.backends.schedulers import scheduler_names
from windlass.backends.schedulers.base import refusals_of
from windlass.base.tables import packaged_table
from windlass.cli import main as cli_main
from windlass.cli.main import command_names, command_parser

EXAMPLES: dict[str, dict[str, str]] = packaged_table(cli_main.__file__, "examples.toml")
ALL = [line for rows in EXAMPLES.values() for line in rows]


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(command_names())
    assert all(rows and all(line.startswith(f"windlass {name}") for line in rows) for name, rows in EXAMPLES.items())


@each("line", ALL)
def test_an_example_is_a_line_that_its_command_takes(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    command, parser = command_parser(words[0])
    args = command.parse(parser, words[1:]) if hasattr(command, "parse") else parser.parse_args(words[1:])
    assert isinstance(args, argparse.Namespace)


def test_help_prints_its_examples_and_fits_a_terminal(tmp_path: Path) -> None:
    for name in command_names():
        text = in_process(name, "--help", cwd=tmp_path).stdout
        assert "examples:" in text and next(iter(EXAMPLES[name])) in text


def _made(tree: ast.AST, kinds: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            yield node


def test_every_error_that_is_raised_says_what_to_do() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.WindlassError) and kind is not errors.WindlassError
    }
    without = [
        f"{file.relative_to(SRC)}:{call.lineno}"
        for file in sorted((SRC / "windlass").rglob("*.py"))
        for call in _made(ast.parse(file.read_text()), kinds)
        if not any(keyword.arg in {"hint", None} for keyword in call.keywords)
    ]
    assert without == []


@each("name", scheduler_names())
def test_every_refusal_of_a_scheduler_says_what_to_do(name: str) -> None:
    assert [refusal.means for refusal in refusals_of(name) if not refusal.hint] == []


@each(
    "words",
    [
        ("rnu",),
        ("run", "--nod", "2", "x.py"),
        ("run", "--np", "2", "x.py"),
        ("run",),
        ("sites",),
        ("sites", "show", "lumy"),
        ("runs", "show"),
        ("image", "check"),
        ("bench", "nonsense"),
        ("cache",),
        ("completion", "tcsh"),
        ("submit", "x.py"),
        ("logs", "nothing"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_in_a_hint(words: tuple[str, ...], tmp_path: Path) -> None:
    done = in_process(*words, cwd=tmp_path)
    assert done.code == 2, done.text
    assert done.stderr.rstrip().splitlines()[-1].lstrip().startswith(("hint:", "`windlass")), done.stderr


def _help_lines() -> Iterator[tuple[str, ...]]:
    """Every command and sub-command, as it is asked for its help."""
    for name in command_names():
        yield (name,)
        command, parser = command_parser(name)
        nested = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        for sub in [*getattr(command, "SUBS", ()), *(word for choices in nested for word in choices)]:
            yield (name, sub)


_COMMAND_TO_COPY = re.compile(r"^ {4}(?:windlass |eval )|^\s+`[^`]+`\S*$")


@each("words", [*_help_lines()], ids=" ".join)
def test_help_fits_eighty_columns_but_for_commands_to_copy(words: tuple[str, ...], tmp_path: Path) -> None:
    shown = in_process(*words, "--help", cwd=tmp_path, env={"COLUMNS": "80"})
    assert shown.code == 0 and shown.stdout
    long = [line for line in shown.stdout.splitlines() if len(line) > 80 and not _COMMAND_TO_COPY.match(line)]
    assert long == []


def test_the_list_of_commands_fits_a_terminal(tmp_path: Path) -> None:
    assert max(map(len, plain(on_terminal("--help", cwd=tmp_path, columns=80)).splitlines())) <= 80


def test_every_example_stays_one_line_at_forty_columns(tmp_path: Path) -> None:
    for name in command_names():
        lines = in_process(name, "--help", cwd=tmp_path, env={"COLUMNS": "40"}).stdout.splitlines()
        assert [line for line in EXAMPLES[name] if f"    {line}" not in lines] == []


@each("site", ["frontier", "lumi", "aurora"])
def test_a_plan_of_an_environment_fits_and_its_commands_stay_whole(site: str, tmp_path: Path) -> None:
    words = ("env", "plan", "--site", site, "--with", "mpi4py,deepspeed")
    whole = in_process(*words, cwd=tmp_path).stdout.splitlines()
    lines = plain(on_terminal(*words, cwd=tmp_path, columns=60)).splitlines()
    commands = [line for line in whole if line.startswith("       ") and not line.lstrip().startswith("→")]
    assert commands and [line for line in commands if line not in lines] == []
    assert [line for line in lines if len(line) > 60 and line not in commands and line.count("/") < 2] == []
    script = in_process(*words, "--format", "script", cwd=tmp_path)
    assert plain(on_terminal(*words, "--format", "script", cwd=tmp_path, columns=60)) == script.stdout


def test_lists_and_hints_fit_a_terminal_and_a_pipe_gets_them_whole(tmp_path: Path) -> None:
    listed = plain(on_terminal("sites", "list", cwd=tmp_path, columns=60))
    piped = in_process("sites", "list", cwd=tmp_path, env={"COLUMNS": "60"}).stdout
    assert max(map(len, listed.splitlines())) <= 60 < max(map(len, piped.splitlines()))
    hint = plain(on_terminal("explain", "NO_SUCH", "--site", "nowhere", cwd=tmp_path, columns=60))
    assert "hint:" in hint and max(map(len, hint.splitlines())) <= 60
