"""Read a job file: several programs in one job, as TOML. Each component takes the options of `windlass run`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.backends.schedulers.walltime import parse_walltime
from windlass.base.tables import tomllib
from windlass.cli.option_groups import ALL, JOB, PLACE, add_request_options
from windlass.errors import ConfigError, UsageError, os_errors
from windlass.model.finding import Finding
from windlass.model.job import ComponentTable, JobTable
from windlass.model.request import Component, Request
from windlass.node.sys.reading import read_text
from windlass.plan.components import check_components
from windlass.sites.check import problems_of_table
from windlass.sites.shape import Misfit, line_index

SUFFIX = ".toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}\Z")
_SINGLE = ("nodes", "ranks_per_node", "gpus_per_node", "container", "activate", "python", "restarts", "hang_after")
_OF_JOB = (*PLACE, *JOB, "--name", "--run-dir", "--watch", "--grace")
"""Options of the command line that a job file accepts. They apply to the whole job."""


def with_components(request: Request, args: argparse.Namespace, make: Any) -> Request:
    """Return the request for the job file that is the command of `request`.

    `make` turns the options of one component into a request. Raises `ConfigError` with file and line.
    """
    if len(request.command) > 1:
        raise UsageError(f"{request.command[1]}: a job file takes no arguments", hint="put options before the file")
    path = Path(request.command[0])
    table, lines = _read(path)
    changed = [name for name, value in _given(args).items() if value and name not in _OF_JOB]
    if changed:
        raise UsageError(f"{changed[0]} applies to one program", hint=f"put it into a component of {path}")
    own = {key: getattr(table, key) for key in ("site", "nodes", "partition", "qos", "account", "time")}
    found = {key: value for key, value in own.items() if value is not None and getattr(request, key) is None}
    components = tuple(
        _component(name, one, path, lines, make, watch=request.watch) for name, one in table.components.items()
    )
    check_components(components)
    return msgspec.structs.replace(
        request,
        **found,
        command=(),
        kind="none",
        watch=False,
        name=request.name or table.name or path.stem,
        directives=(*table.directive, *request.directives),
        components=components,
    )


def _given(args: argparse.Namespace) -> dict[str, bool]:
    """Return whether each option of a request has another value than its default."""
    parser = argparse.ArgumentParser(add_help=False)
    add_request_options(parser)
    given = vars(args)
    return {
        action.option_strings[0]: given.get(action.dest, action.default) != action.default
        for action in parser._actions
        if action.option_strings[0] in ALL
    }


def _read(path: Path) -> tuple[JobTable, dict[tuple[str | int, ...], int]]:
    with os_errors(f"read {path}", hint="is the name right?", kind=UsageError):
        text = read_text(path, follow=True)
    problems = problems_of_table(text, str(path), JobTable, _misfits)
    if problems:
        raise ConfigError(problems[0].text(), hint=_hint(problems))
    return msgspec.convert(tomllib.loads(text), JobTable), line_index(text)


def _hint(problems: tuple[Finding, ...]) -> str | None:
    more = f"{len(problems) - 1} more: {problems[1].text()}" if len(problems) > 1 else ""
    return "; ".join(part for part in (problems[0].advice, more) if part) or None


def _misfits(data: Mapping[str, Any]) -> Iterator[Misfit]:
    """Yield what the schema cannot express."""
    components = data.get("components")
    if components is None:
        yield Misfit(path=(), message="it has no component", hint="add a table [components.NAME]")
    try:
        parse_walltime(str(data.get("time", "1h")))
    except UsageError as error:
        yield Misfit(path=("time",), message=error.message, hint=error.hint or "")
    if not isinstance(components, Mapping):
        return
    if not components:
        yield Misfit(path=("components",), message="is empty", hint="add a table [components.NAME]")
    for name, one in components.items():
        path = ("components", name)
        if not _NAME.match(name):
            hint = "use lower-case letters, digits and '-', 31 at most"
            yield Misfit(path=path, message=f"{name!r} is not the name of a component", hint=hint)
        if not isinstance(one, Mapping):
            continue
        if bool(one.get("script")) == bool(one.get("command")):
            message = "script and command were given" if one.get("script") else "has neither script nor command"
            yield Misfit(path=path, message=message, hint='write script = "train.py" or command = ["program", "-x"]')
        if one.get("args") and not one.get("script"):
            yield Misfit(path=(*path, "args"), message="belongs to a script", hint="put it into command")
        ready = one.get("ready")
        if isinstance(ready, Mapping) and sum(bool(ready.get(key)) for key in _TESTS) != 1:
            message = f"must have exactly one of {', '.join(_TESTS)}"
            yield Misfit(
                path=(*path, "ready"), message=message, hint='as in ready = { http = "/health", within_s = 60 }'
            )
        if isinstance(ready, Mapping) and not str(ready.get("http") or "/").startswith("/"):
            yield Misfit(path=(*path, "ready"), message="http must begin with /", hint='as in http = "/health"')
        for key, least in (("nodes", 1), ("cores_per_node", 1), ("gpus_per_node", 0), ("ranks_per_node", 1)):
            value = one.get(key)
            if isinstance(value, int) and value < least:
                yield Misfit(path=(*path, key), message=f"must be {least} or more, not {value}")


_TESTS = ("port", "http", "log", "file", "finished")


def _component(
    name: str, table: ComponentTable, path: Path, lines: Mapping[tuple[str | int, ...], int], make: Any, *, watch: bool
) -> Component:
    own = {"/".join(map(str, place[2:])): line for place, line in lines.items() if place[:2] == ("components", name)}
    component = Component(
        name=name,
        request=Request(command=("true",)),
        cores_per_node=table.cores_per_node,
        needs=table.needs,
        ready=table.ready,
        port=table.port,
        end=table.end,
        file=str(path),
        lines={key: line for key, line in own.items() if "/" not in key},
    )
    argv = [*_option_words(table), *(["--watch"] if watch else [])]
    argv += ["--", *table.command] if table.command else [table.script, *table.args]
    before = Path.cwd()
    os.chdir(path.parent)  # paths of the file start at its folder
    try:
        request: Request = make(component.where(), argv)
    except UsageError as error:
        raise ConfigError(f"{component.where()}: {error.message}", hint=error.hint) from None
    finally:
        os.chdir(before)
    if request.until_done or request.spares:
        raise ConfigError(
            f"{component.where('options')}: --until-done and --spares are not for components",
            hint="restarts = N restarts a component on its nodes",
        )
    return msgspec.structs.replace(component, request=request)


def _option_words(table: ComponentTable) -> Iterator[str]:
    """Yield the options of `windlass run` for the keys of a component that have the name of an option."""
    for key in _SINGLE:
        value = getattr(table, key)
        if value is not None:
            yield f"--{key.replace('_', '-')}={value}"
    for key in ("bind", "module"):
        for value in getattr(table, key):
            yield f"--{key}={value}"
    for name, value in table.env.items():
        yield f"--env={name}={value}"
    yield from table.options
