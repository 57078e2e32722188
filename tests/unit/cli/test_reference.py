"""The reference page names every option, setting, variable and placeholder that there is."""

from __future__ import annotations

import argparse
import re
from importlib import import_module

from looping import each
from unit.cli.typed import SRC
from windlass.base.notation.shell import PLACEHOLDERS
from windlass.base.settings import known_settings
from windlass.plan.environment.ranks import rank_variable_names
from windlass.plan.render.rank_script import EXIT_BROKEN

DOCS = SRC.parent / "docs"
PAGE = (DOCS / "reference" / "commands.md").read_text()


COMMANDS = [
    *("run", "plan", "submit", "alloc", "explain", "diff", "logs", "selftest", "doctor", "watch", "exec"),
    *("bugreport",),
]


@each("command", COMMANDS)
def test_every_option_is_on_the_page(command: str) -> None:
    parser = argparse.ArgumentParser()
    import_module(f"windlass.cli.{command}").add_arguments(parser)
    names = {name for action in parser._actions for name in action.option_strings if name not in {"-h", "--help"}}
    missing = sorted(name for name in names if not re.search(rf"{re.escape(name)}\b", PAGE))
    assert missing == []


@each("action", ["plan", "build", "lock", "check", "inject"])
def test_every_option_of_image_is_on_the_page(action: str) -> None:
    parser = argparse.ArgumentParser()
    import_module("windlass.cli.image").add_arguments(parser)
    choices = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    names = {name for a in choices[action]._actions for name in a.option_strings if name not in {"-h", "--help"}}
    assert sorted(name for name in names if not re.search(rf"{re.escape(name)}\b", PAGE)) == []


@each(
    "names",
    [
        tuple(known_settings()),
        rank_variable_names(),
        tuple(f"{{{name}}}" for name in PLACEHOLDERS),
        (str(EXIT_BROKEN),),
    ],
    ids=["settings", "variables", "placeholders", "exit-code"],
)
def test_every_name_is_on_the_page(names: tuple[str, ...]) -> None:
    assert [name for name in names if f"`{name}`" not in PAGE and f"| {name} |" not in PAGE] == []
