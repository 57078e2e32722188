"""The tables of options in docs/reference/commands.md, made from the help texts of the command line."""

from __future__ import annotations

import argparse
from importlib import import_module

from markdown_table import table

_REQUEST = "submit"
"""The command with every option of a request. `run` has more options, but none of a job that does not exist yet."""


def options_part() -> str:
    """A table for each section of the help: options of a request, then those of `run` alone."""
    lines: list[str] = []
    request = _parser(_REQUEST)
    known = {name for action in request._actions for name in action.option_strings}
    for group in request._action_groups[2:]:
        lines += [f"**{(group.title or '').capitalize()}**", "", *_rows(group._group_actions), ""]
    alone = [a for a in _parser("run")._actions if a.option_strings and not known & {*a.option_strings}]
    return "\n".join((*lines, "**Only for `run`**", "", *_rows(alone), ""))


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"windlass.cli.{command}").add_arguments(parser)
    return parser


def _rows(actions: list[argparse.Action]) -> list[str]:
    return table(
        ("option", "effect"), [(_names(action), (action.help or "").replace("; ", ", ")) for action in actions]
    )


def _names(action: argparse.Action) -> str:
    values = "|".join(map(str, action.choices)) if action.choices else action.metavar if action.nargs != 0 else ""
    first, *others = action.option_strings
    text = f"[{values}]" if action.nargs == "?" else values
    return ", ".join((f"`{first} {text}`" if text else f"`{first}`", *(f"`{name}`" for name in others)))
