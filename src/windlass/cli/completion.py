"""Completion for your shell: commands, options, sites, runs.

eval "$(windlass completion bash)"        in ~/.bashrc; the same with zsh in ~/.zshrc
windlass completion fish | source         in ~/.config/fish/config.fish"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from windlass.backends.containers import runtime_names
from windlass.backends.launchers import launcher_names
from windlass.backends.schedulers import scheduler_names
from windlass.base.settings import current_environ, read_settings
from windlass.base.tables import packaged_text
from windlass.cli.main import command_names, command_parser
from windlass.cli.show import Result
from windlass.run.folder import RunFolder
from windlass.run.supervise.runs import find_runs
from windlass.sites.catalog import site_names

_SHELLS = ("bash", "zsh", "fish")
_RUN_ARGUMENTS = ("run", "runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=(*_SHELLS, "words"), help="words: what may stand at the end of these words")
    parser.add_argument("words", nargs="*", metavar="WORD", help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> Result:
    if args.shell != "words":
        return Result(text=packaged_text(__file__, f"completion.{args.shell}"), foreign=True)
    return Result(text="\n".join(candidates(args.words)), foreign=True)


def candidates(words: list[str]) -> list[str]:
    """Candidates for the last argument, given those before it. Empty: the shell offers files."""
    *before, last = words or [""]
    if not before:
        return _beginning(last, command_names())
    if before[0] not in command_names() or "--" in before:
        return []
    command, parser = command_parser(before[0])
    subs: Iterable[str] = getattr(command, "SUBS", ())
    if subs and len(before) == 1 and not last.startswith("-"):
        return _beginning(last, subs)
    shared = parser._option_string_actions
    parser = command.sub_parser(parser, before[1]) if before[1:] and before[1] in subs else _deepest(parser, before[1:])
    options = shared | parser._option_string_actions
    option = options.get(before[-1])
    if option is not None and option.nargs != 0:
        return _beginning(last, _values(option))
    if last.startswith("-"):
        return _beginning(last, (name for name in options if name.startswith("--")))
    for action in parser._actions:
        if not action.option_strings and (found := _beginning(last, _values(action))):
            return found
    return []


def _deepest(parser: argparse.ArgumentParser, words: list[str]) -> argparse.ArgumentParser:
    """The parser of the sub-command in these arguments, or the command's own parser."""
    for word in words:
        choices = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
        if choices and word in choices:
            parser = choices[word]
    return parser


def _values(action: argparse.Action) -> Iterable[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    settings = read_settings(current_environ())
    if action.dest in {"site", "only_at"} or (action.dest == "name" and not action.option_strings):
        return site_names(settings.folders)
    if action.dest in _RUN_ARGUMENTS:
        return [_name(folder) for folder in reversed(find_runs(settings.runs_dir))]
    known = {"scheduler": scheduler_names, "launcher": launcher_names, "runtime": runtime_names}.get(action.dest)
    return known() if known else ()


def _name(folder: RunFolder) -> str:
    return folder.path.name


def _beginning(start: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(start) and name.isprintable()]
