"""Entry point: finds the command, runs it, prints its result or error. Imports a command's module only when used."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Container
from importlib import import_module
from typing import Any

import windlass
from windlass.base.notation.style import filled, width_of
from windlass.base.settings import current_environ
from windlass.cli.show import Result, for_stream, say, working
from windlass.errors import CommandError, MachineError, UsageError, WindlassError, nearest
from windlass.node.sys.folders import UntrustedError
from windlass.node.sys.reading import UnreadableError

_GROUPS: dict[str, dict[str, str]] = {
    "Run": {
        "run": "run a script on this machine or in this allocation",
        "submit": "submit a script as a batch job",
        "alloc": "open a shell in an interactive allocation",
        "plan": "show what would run, and the reason for each setting",
        "explain": "explain one variable or option: its reason and source",
        "runs": "list, show, resume, stop, trust and remove runs",
    },
    "Look": {
        "logs": "show the output of one rank or of all ranks",
        "watch": "show what a running job does: problems, step times, devices",
        "report": "write one page: what a run did, why it was slow, what to try",
        "explain-log": "find the first cause of an error in log files",
        "exec": "run a command on a node of a running job",
        "diff": "compare two saved plans",
    },
    "Prepare": {
        "doctor": "check this machine, or all nodes of the allocation",
        "nodes": "list or forgive nodes that windlass avoids",
        "env": "plan, create, check and pack Python environments",
        "image": "plan, build and check container images",
        "stage": "copy folders, archives and images to the nodes",
        "cache": "control the cooperative cache and its traces",
    },
    "Measure": {
        "bench": "measure collectives, training steps, input and scaling",
        "tune": "search for the fastest settings of your script",
    },
    "Set up": {
        "init": "save your account and partition; describe a new cluster",
        "sites": "list, show, detect and check the machines of the catalog",
        "completion": "print the completion script for your shell",
        "selftest": "test a machine and pack the result as one file",
        "bugreport": "pack what is needed to help you, without secrets",
    },
}
_COMMANDS = {name: text for group in _GROUPS.values() for name, text in group.items()}

_BAD_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


class _Parser(argparse.ArgumentParser):
    """argparse with the nearest name in its errors and without abbreviations of options."""

    command = ""
    """The help contains the examples of this command."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)
        if self.add_help:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help=argparse.SUPPRESS)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, with two differences.

        Options of `env` may also follow `env plan`. The parser of `env plan` reports an unknown option of `env plan`,
        not the parser of `env`.
        """
        if args is not None and self._subparsers is not None:
            namespace, args = take_shared(self, args)
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            _chosen_parser(self, found).error(f"unrecognized arguments: {' '.join(rest)}")
        return found

    def error(self, message: str) -> Any:
        hint = ""
        words = message.split()
        if message.startswith("unrecognized arguments:") and len(words) > 2:
            from windlass.cli.option_groups import owners_text  # imported here: `windlass --help` does not need them
            from windlass.cli.typed_words import refuse_removed, synonym_of

            refuse_removed(self.prog.removeprefix("windlass "), words[2:])
            if owners := owners_text(words[2].partition("=")[0]):
                raise UsageError(f"{self.prog} does not use {words[2]}", hint=f"leave it out; {owners}")
            # Compared without dashes, because all options start with them, which makes any two short options similar.
            names = {option.lstrip("-"): option for option in self._option_string_actions}
            said = words[2].split("=", 1)[0].lstrip("-")
            other = synonym_of("options", said.replace("_", "-"))
            close = names.get(other or "", "") or names.get(nearest(said, names) or "")
            hint = f"did you mean {close}? " if close else ""
        self.print_usage(sys.stderr)
        text = f"{self.prog}: error: {message}\n  hint: {hint}`{self.prog} --help` shows its options and examples"
        self.exit(2, for_stream(text, sys.stderr) + "\n")

    def format_help(self) -> str:
        """The help without rare options. If there are rare options, the help has no sections."""
        if self.command:
            from windlass.cli.typed_words import examples_text  # imported here: only the help needs them

            self.description, self.command = f"{self.description}\n\n{examples_text(self.command)}", ""
        shown = [action for action in self._actions if not getattr(action, "rare", False)]
        if len(shown) == len(self._actions):
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("options")
        formatter.add_arguments(shown)
        formatter.end_section()
        formatter.add_text(self.epilog)
        formatter.add_text(f"`{self.prog} --help-all` shows {len(self._actions) - len(shown)} more options.")
        return formatter.format_help()

    def print_help(self, file: Any = None) -> None:
        stream = file or sys.stdout
        plain = width_of(stream, current_environ(), pipe=True) is None
        print(for_stream(self.format_help(), stream, foreign=plain, pipe=True), end="", file=stream)


def take_shared(
    parser: argparse.ArgumentParser, argv: list[str], without: Container[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the options that a command shares with all its sub-commands, at any position, and return the rest."""
    shared = _Parser(prog=parser.prog, add_help=False)
    for action in _own_options(parser):
        if not any(name in without for name in action.option_strings):
            shared._add_action(action)
    return shared.parse_known_args(argv)


def _own_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in parser._actions if a.option_strings and a.dest not in {"help", "help_all"}]


class _HelpAll(argparse.Action):
    """`--help-all`: the help with every option."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action in parser._actions:
            action.rare = False  # type: ignore[attr-defined]
        parser.print_help()
        parser.exit()


def _chosen_parser(parser: argparse.ArgumentParser, found: argparse.Namespace) -> argparse.ArgumentParser:
    """The parser of the chosen action, or of the command if it has no actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(str(getattr(found, action.dest, "")))
            return _chosen_parser(chosen, found) if chosen else parser
    return parser


def _usage() -> str:
    width = max(len(name) for name in _COMMANDS)
    lines = ["usage: windlass COMMAND [options]", "", windlass.__doc__ or ""]
    for group, commands in _GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:<{width}}  {text}" for name, text in commands.items())]
    lines += ["", "`windlass COMMAND --help` shows the options of a command, with examples."]
    return "\n".join(lines)


def command_names() -> tuple[str, ...]:
    return tuple(_COMMANDS)


def command_parser(name: str) -> tuple[Any, argparse.ArgumentParser]:
    """The module of a command and the parser of its options."""
    command = import_module(f"windlass.cli.{name.replace('-', '_')}")
    parser = _Parser(prog=f"windlass {name}", description=command.__doc__, formatter_class=_Help)
    command.add_arguments(parser)
    for nested in (a for a in parser._actions if isinstance(a, argparse._SubParsersAction)):
        for sub in nested.choices.values():
            sub.epilog = shared_text(parser)
    parser.command = name
    return command, parser


def shared_text(parser: argparse.ArgumentParser) -> str | None:
    """The end of a sub-command's help: the options of its command that it also has."""
    names = [action.option_strings[0] for action in _own_options(parser)]
    return f"Also has {', '.join(names)}, as every `{parser.prog}` command." if names else None


def _overview() -> str:
    from windlass.cli.overview import overview_text  # imported here: `windlass --help` does not need it

    return overview_text()


def _progress(command: Any, args: argparse.Namespace) -> str | None:
    """The text of a command's progress line, which may depend on the sub-command. None: no progress line."""
    if hasattr(command, "progress"):
        text: str | None = command.progress(args)
        return text
    said: str | dict[str, str] | None = getattr(command, "PROGRESS", None)
    return said.get(args.action) if isinstance(said, dict) else said


def main(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    if argv and argv[0] in {"-h", "--help", "help"}:
        return _show(Result(text=_usage()), as_json=False)
    if argv and argv[0] in {"-V", "--version"}:
        return _show(Result(text=f"windlass {windlass.__version__}"), as_json=False)
    if argv and argv[0] not in _COMMANDS:
        name = argv[0]
        from windlass.cli.typed_words import synonym_of  # imported here: only a mistake needs it

        close = synonym_of("commands", name) or nearest(name, _COMMANDS)
        hint = f"did you mean {close!r}? " if close else ""
        return _complain(UsageError(f"unknown command {name!r}", hint=f"{hint}`windlass --help` lists the commands"))
    try:
        if not argv:
            return _show(Result(text=_overview()), as_json=False)
        command, parser = command_parser(argv[0])
        args = command.parse(parser, argv[1:]) if hasattr(command, "parse") else parser.parse_args(argv[1:])
        with working(_progress(command, args)):
            result = command.main(args)
    except WindlassError as error:
        return _complain(error)
    except (UnreadableError, UntrustedError) as error:
        return _complain(UsageError(str(error), hint="this file cannot be used: name another one"))
    except OSError as error:
        if error.errno not in _BAD_PATH:
            raise
        path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "a path"
        return _complain(UsageError(f"{path[:80]}…: {error.strerror}", hint="give a shorter path, without circles"))
    except KeyboardInterrupt as interrupt:
        sig = getattr(interrupt, "signal", signal.SIGINT)
        print(f"windlass: {sig.name}", file=sys.stderr)
        return 128 + int(sig)
    code: int = result.exit_code
    return _show(result, as_json=getattr(args, "json", False)) or code


def _as_shown(result: Result) -> str:
    return for_stream(
        result.text,
        sys.stdout,
        own_colours=result.coloured,
        foreign=result.foreign,
        verbatim=result.verbatim,
    )


def _show(result: Result, *, as_json: bool) -> int:
    """Print a result. Returns the exit code of a failure to print, or 0."""
    try:
        if as_json and result.data is not None:
            _print_json(result.data)
        elif result.text:
            text = _as_shown(result)
            print(text, end="" if text.endswith("\n") else "\n")
        sys.stdout.flush()
    except OSError as error:  # the buffer still holds the text, and the interpreter would try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # `windlass plan … | head`
            return 128 + signal.SIGPIPE
        return _complain(MachineError(f"cannot write the output: {error.strerror}", hint="is the disk full?"))
    return 0


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        self._limit = width_of(sys.stdout, current_environ(), pipe=True)  # as argparse itself does
        super().__init__(prog, max_help_position=32, width=min(110, self._limit or 110))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return super()._fill_text(filled(text, width) if self._limit else text, width, indent)


def _print_json(data: object) -> None:
    from windlass.model.jsontext import to_json  # imported here: `windlass --help` does not need it

    sys.stdout.write(to_json(data).decode())


def _complain(error: WindlassError) -> int:
    lines = [f"windlass: error: {error.message}"]
    if isinstance(error, CommandError) and error.output and error.output.splitlines()[-1] not in error.message:
        lines += [f"  | {line}" for line in error.output.splitlines()[-5:]]
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    say("\n".join(lines))
    return error.exit_code


class _Asked(KeyboardInterrupt):
    """A signal asked windlass to end. It acts like Ctrl-C, so that all cleanup runs."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


def _end(number: int, _: object) -> None:
    raise _Asked(number)


def _open_streams() -> None:
    """Open closed standard streams (`>&-`) on /dev/null, so that pipes to ranks do not get their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that this locale cannot write must not end a command
            stream.reconfigure(errors="backslashreplace")


def entry() -> None:
    """The `windlass` command."""
    for sig in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sig) is not signal.SIG_IGN:  # nohup
            signal.signal(sig, _end)
    _open_streams()
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt as interrupt:
        code = 128 + int(getattr(interrupt, "signal", signal.SIGINT))
    sys.exit(code)
