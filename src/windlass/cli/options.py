"""Make a request from the options of a command line. The options are declared in `option_groups`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from windlass.backends.launchers import launcher_names
from windlass.backends.schedulers import scheduler_names
from windlass.base.notation.shell import NAME, literal, quote_words
from windlass.base.procs.command import which
from windlass.cli.option_groups import (
    USAGE,
    add_request_options,
    cache_options,
    default_options,
    profile_option,
    ranks_option,
)
from windlass.cli.show import say
from windlass.errors import MachineError, UsageError, unknown_name
from windlass.model.request import AUTO, SITE_CACHES, Request
from windlass.node.sys.reading import open_plain
from windlass.plan.command import nested_launcher
from windlass.run.folder import PLAN_FILE

CommandKind = Literal["script", "module", "command", "none"]
_SHELL_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".pbs")
_PYTHON = re.compile(r"python[\d.]*\Z")
_TYPED_BYTES = 100_000  # Linux accepts arguments of 128 KiB
_MAX_RANKS_PER_NODE = 4096
_MAX_SCRIPT_BYTES = 1 << 20
_FOR_OTHERS = ("--arg", "--directive", "--container-arg")
_AS_WRITTEN = (
    *("scheduler", "launcher", "hosts", "partition", "qos", "account", "time"),
    *("nodes", "ranks_per_node", "ranks_per_device", "cpu_bind", "devices", "device_unit", "threads"),
    *("container", "runtime", "mpi", "master_port", "run_dir", "until_done", "watch", "check"),
)
"""Options that the request stores unchanged under the same name."""
PLACEHOLDER_COMMAND = "COMMAND"
"""The command in plans that are only shown, if the user named no command."""


def parse_allocation_options(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse like `parse_with_command`, for an allocation.

    The command, if any, becomes `inside`, and the plan is made for a shell.
    """
    options, kind, command = split_command(parser, argv)
    args = parser.parse_args(join_values(options))
    if command and kind != "command":
        raise UsageError(f"{command[0]}: an allocation starts a shell", hint=f"write -- {' '.join(command)}")
    args.kind, args.command, args.inside, args.name = "none", [], command, args.name or "alloc"
    return args


def parse_with_command(
    parser: argparse.ArgumentParser, argv: list[str], *, refused: tuple[str, ...] = ()
) -> argparse.Namespace:
    """Parse the options up to the user's command. The command is taken unchanged, whatever its own options are.

    If an option of windlass is among the arguments of a script that does not read it, it is `refused` or gets a
    warning.
    """
    options, kind, command = split_command(parser, argv)
    args = parser.parse_args(join_values(options))
    args.kind, args.command = kind, command
    for option in misplaced_options(parser, kind, command):
        if option in refused:
            line = quote_words((*parser.prog.split(), *options, option, *(word for word in command if word != option)))
            raise UsageError(f"{option} is among the arguments of {command[0]}", hint=f"write {line}")
        say(
            f"windlass: {option} comes after the script, so the script gets it. To give it to windlass, write it "
            f"before {command[0]}"
        )
    return args


def misplaced_options(parser: argparse.ArgumentParser, kind: str, command: list[str]) -> list[str]:
    """Options of windlass that follow a script whose text does not contain them."""
    if kind != "script" or not command or not command[0].endswith(".py"):
        return []
    try:
        with open_plain(command[0], follow=True) as file:
            text = file.read(_MAX_SCRIPT_BYTES)
    except OSError:
        text = b""
    names = [word.split("=", 1)[0] for word in command[1:] if word.startswith("--")]
    known = [name for name in names if name in parser._option_string_actions]
    return [name for name in known if not any(form.encode() in text for form in _forms(name))]


def _forms(option: str) -> tuple[str, ...]:
    """Spellings of an option that a script reads: `--run-dir`, `run_dir` of a dataclass, `run-dir`."""
    bare = option.lstrip("-")
    return bare, bare.replace("-", "_")


def join_values(argv: list[str]) -> list[str]:
    """Join `--arg --mem=0` to `--arg=--mem=0` for argparse, and read `--with-ray` as `--with=ray`.

    Joining is needed because arguments for other programs also start with a dash.
    """
    out: list[str] = []
    for word in argv:
        if out and out[-1] in _FOR_OTHERS:
            out[-1] += f"={word}"
        else:
            out.append(re.sub(r"\A--with-([a-z][\w-]*)\Z", r"--with=\1", word))
    return out


def split_command(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[list[str], str, list[str]]:
    """Split the arguments into the options of windlass, the kind of command, and the user's command."""
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return argv[:at], "command", argv[at + 1 :]
        if word == "-m":
            return argv[:at], "module", argv[at + 1 :]
        if not word.startswith("-") or word == "-":
            return argv[:at], "script", argv[at:]
        action = option_action(parser, word)
        at += 1
        if action is None or "=" in word or action.nargs == 0:
            continue
        if action.nargs == "?":
            if at < len(argv) and re.fullmatch(r"all|[\d,\-]+", argv[at]):
                at += 1
            continue
        at += 1
    return argv, "script", []


def option_action(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """The option of this argument, `--name` or `--name=value`."""
    return parser._option_string_actions.get(word.split("=", 1)[0])


def request_from(args: argparse.Namespace, environ: Mapping[str, str]) -> Request:
    """The request of a parsed command line.

    An option that the command does not have counts as not given. Raises `UsageError` for invalid values.
    """
    args = argparse.Namespace(**default_options() | vars(args))
    cwd = _working_folder()
    _refuse_empty(args)
    kind: CommandKind = args.kind
    command = tuple(args.command)
    if not command and kind != "none":
        raise UsageError("nothing to run", hint=f"add what to run: {USAGE.removeprefix('[options] ')}")
    command = _with_typed_script(command, fills=not args.no_placeholders)
    job_file = kind == "script" and command[0].endswith(".toml")
    kind = "none" if job_file else _check_command(kind, command, args, environ)
    _refuse_impossible(args)
    same = {name: getattr(args, name) for name in _AS_WRITTEN}
    request = Request(
        **same,
        command=command,
        kind=kind,
        name=_name(args.name),
        cwd=cwd,
        python=_absolute_command(args.python),
        **_gpus(args),
        placeholders=not args.no_placeholders,
        **_site(args.site),
        directives=tuple(args.directive),
        launcher_args=tuple(args.arg),
        binds=tuple(args.bind),
        container_args=tuple(args.container_arg),
        host_libs=_host_libs(args.host_libs),
        **_environment(args.env),
        env_prepend=tuple(_pair(text, "--env-prepend") for text in args.env_prepend),
        modules=tuple(name for name in args.module if name != "none"),
        no_modules="none" in args.module,
        activate=str(Path(args.activate).expanduser().absolute()) if args.activate else None,
        keep_caches=str(Path(args.keep_caches).expanduser().absolute()) if args.keep_caches else None,
        options=tuple(args.options),
        comm_log=ranks_option(args.comm_log),
        **profile_option(args.profile),
        grace_s=args.grace,
        cache=tuple(
            path if path in (AUTO, *SITE_CACHES) else os.path.abspath(Path(path).expanduser())  # noqa: PTH100  links stay
            for path in args.cache
        ),
        **cache_options(args.cache_set),
        restarts=args.restarts,
        spares=args.spares,
        hang_after_s=args.hang_after,
    )
    if not job_file:
        return request
    from windlass.cli.job_file import with_components  # imported here: only job files need it

    return with_components(request, args, lambda place, argv: _component_request(place, argv, environ))


def _component_request(place: str, argv: list[str], environ: Mapping[str, str]) -> Request:
    """The request of one component of a job file, from the options in its table."""
    parser = _ComponentParser(prog=place, add_help=False, allow_abbrev=False)
    add_request_options(parser)
    options, kind, command = split_command(parser, argv)
    args = parser.parse_args(join_values(options))
    args.kind, args.command = kind, command
    return request_from(args, environ)


class _ComponentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="`windlass run --help-all` shows all options")


def _refuse_impossible(args: argparse.Namespace) -> None:
    if args.nodes is not None and args.nodes < 1:
        raise UsageError(f"--nodes {args.nodes}", hint="give 1 or more")
    for name, known in (("scheduler", scheduler_names()), ("launcher", launcher_names())):
        value = getattr(args, name)
        if value is not None and value not in known:
            raise unknown_name(name, value, known)
    if args.ranks_per_node is not None and args.ranks_per_node > _MAX_RANKS_PER_NODE:
        raise UsageError(f"--ranks-per-node {args.ranks_per_node}", hint=f"at most {_MAX_RANKS_PER_NODE}")
    if not 0 <= args.grace < float("inf"):
        raise UsageError(f"--grace {args.grace}", hint="give seconds, 0 or more")
    if args.threads is not None and args.threads < 1:
        raise UsageError(f"--threads {args.threads}", hint="give 1 or more")
    for name in ("restarts", "spares"):
        if (getattr(args, name) or 0) < 0:
            raise UsageError(f"--{name} {getattr(args, name)}", hint="give 0 or more")
    if args.hang_after is not None and not 1 <= args.hang_after < float("inf"):
        hint = "give seconds, 1 or more: longer than your longest step"
        raise UsageError(f"--hang-after {args.hang_after:g}", hint=hint)
    for name in ("bind", "runtime", "container_arg", "host_libs"):
        if getattr(args, name) and not args.container:
            raise UsageError(f"--{name.replace('_', '-')} without --container", hint="add --container IMAGE")
    if args.master_port is not None and not 0 < args.master_port < 65536:
        raise UsageError(f"--master-port {args.master_port}", hint="give a number from 1 to 65535")
    if args.cache_set and not args.cache:
        raise UsageError("--cache-set without --cache", hint="add --cache PATH")
    if args.cache_set and any(name in args.cache for name in SITE_CACHES):
        raise UsageError("--cache-set with the site's own cache", hint="it has no effect there: leave it out")


def _gpus(args: argparse.Namespace) -> dict[str, Any]:
    """--gpus-per-node N or TYPE:N. --device cpu means 0."""
    text = args.gpus_per_node
    if getattr(args, "device_kind", None) == "cpu":
        if text not in {None, "0"}:
            raise UsageError(f"--device cpu with --gpus-per-node {text}", hint="leave one of them out")
        return {"gpus_per_node": 0}
    if text is None:
        return {}
    kind, colon, count = text.rpartition(":")
    if not re.fullmatch(r"-?\d{1,9}", count) or (colon and not re.fullmatch(r"[\w.-]+", kind)):
        raise UsageError(f"--gpus-per-node {text[:40]}", hint="give a number, or a type and a number, as in a100:4")
    return {"gpus_per_node": int(count), "gpu_type": kind or None}


def _host_libs(text: str | None) -> str | None:
    """Make the directories of a colon-separated list absolute. `none` stays."""
    if text is None or text == "none":
        return text
    folders = [str(Path(folder).expanduser().absolute()) for folder in text.split(":") if folder]
    if not folders:
        raise UsageError("--host-libs: no folder", hint="give the folder that has libfabric.so.1, or none")
    return ":".join(folders)


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise MachineError("the current folder no longer exists", hint="change to an existing folder") from None


def _with_typed_script(command: tuple[str, ...], *, fills: bool) -> tuple[str, ...]:
    """Replace `-` in `python -` with the script from standard input, because ranks have no standard input."""
    at = command.index("-") if "-" in command else 0
    if not at or not _PYTHON.match(Path(command[0]).name) or not all(word[:1] == "-" for word in command[1:at]):
        return command
    text = sys.stdin.buffer.read(_TYPED_BYTES + 1)
    if len(text) > _TYPED_BYTES:
        raise UsageError("standard input is too long for a command line", hint="write the script to a file")
    script = text.decode("utf-8", "surrogateescape")
    return (*command[:at], "-c", literal(script) if fills else script, *command[at + 1 :])


def _refuse_empty(args: argparse.Namespace) -> None:
    """Raise `UsageError` for an empty value.

    It is nearly always a shell variable that is not set (`--run-dir "$DIR"`).
    """
    flags = {"options": "--with"}
    for name, value in vars(args).items():
        if name != "command" and (value == "" or (isinstance(value, list) and "" in value)):
            flag = flags.get(name, "--" + name.replace("_", "-"))
            raise UsageError(f"{flag} has an empty value", hint="perhaps a variable of your shell is not set")


def _check_command(
    kind: CommandKind, command: tuple[str, ...], args: argparse.Namespace, environ: Mapping[str, str]
) -> CommandKind:
    """Check the command. A script must exist, unless it is inside a container. A program name is a command."""
    if kind != "script" or args.container:
        return kind
    first = command[0]
    path = Path(first)
    if path.is_dir() and not (path / "__main__.py").exists():
        hint = "give a script, -m MODULE, or -- COMMAND"
        if (path / PLAN_FILE).exists():
            hint = f"`windlass explain {quote_words((first,))}` shows the settings of this run; for a new run, {hint}"
        raise UsageError(f"{first} is a folder", hint=hint)
    if first.endswith((".py", ".pyz")) or path.is_dir():
        if not path.exists() and getattr(args, "script_may_be_missing", False):
            say(f"windlass: script {first} does not exist here; the plan shows everything around it")
        elif not path.exists():
            raise UsageError(f"script {first} does not exist", hint=f"looked in {Path.cwd()}")
        return kind
    if first == "-":
        raise UsageError(
            "a script from standard input", hint="write it to a file, because every rank on every node reads it"
        )
    if path.is_file() and os.access(path, os.X_OK) and "/" in first:
        return "command"
    if path.is_file() and (first.endswith(_SHELL_SCRIPTS) or _names_a_shell(path)):
        raise UsageError(f"{first} is a shell script, not Python", hint=f"write -- bash {first}")
    if path.is_file():
        return kind
    if which(first, environ) or nested_launcher(command):
        return "command"
    raise UsageError(f"script {first} does not exist", hint=f"looked in {Path.cwd()} and for a command in PATH")


def _names_a_shell(path: Path) -> bool:
    """Whether the file's first line names a shell."""
    try:
        with open_plain(path, follow=True) as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and re.search(rb"\b(?:ba|da|k|z|c|tc)?sh\b", first) is not None


def _name(name: str | None) -> str | None:
    if name is None:
        return None
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
        raise UsageError(
            f"--name {name!r}", hint="use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    return name


def _absolute_command(path: str | None) -> str | None:
    """Make a path to an interpreter absolute without resolving links, because jobs start in other directories."""
    if path is None or "/" not in path:
        return path
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100  resolve() would follow a venv's link to the base


def _pair(text: str, flag: str = "--env") -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{flag} {text!r} has no '='", hint=f"write {flag} NAME=VALUE")
    if not value and flag != "--env":
        raise UsageError(f"{flag} {text} adds nothing", hint=f"write {flag} {name}=FOLDER")
    return _variable(name, flag), value


def _variable(name: str, flag: str) -> str:
    if not NAME.match(name):
        raise UsageError(
            f"{flag} {name!r} is not the name of a variable", hint="letters, digits and '_', no digit first"
        )
    return name


def _site(text: str | None) -> dict[str, Any]:
    """--site NAME, or FILE if the value looks like a path."""
    if text is None or not ("/" in text or text.endswith(".toml")):
        return {"site": text} if text else {}
    return {"site_file": str(Path(text).expanduser().absolute())}


def _environment(texts: list[str]) -> dict[str, Any]:
    """--env NAME=VALUE, ~NAME and NAME+=FOLDER."""
    appended = [text for text in texts if text.partition("=")[0].endswith("+")]
    unset = [text for text in texts if text.startswith("~")]
    return {
        "env": tuple(_pair(text) for text in texts if text not in appended and text not in unset),
        "env_append": tuple(_pair(text.replace("+=", "=", 1), "--env NAME+=FOLDER:") for text in appended),
        "unset": tuple(_variable(text[1:], "--env ~NAME:") for text in unset),
    }
