"""The options that make a request, in groups, and the values that consist of several words.

A command declares the options that it uses, and refuses the others.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from windlass.backends.launchers import launcher_names
from windlass.backends.schedulers import scheduler_names
from windlass.base.notation.counts import parse_ranks, parse_size
from windlass.base.tables import packaged_table
from windlass.errors import UsageError, unknown_name

USAGE = "[options] SCRIPT.py [ARGS…] | -m MODULE … | -- COMMAND …"

PLACE = ("--site", "--nodes", "--hosts", "--scheduler", "--launcher")
"""Nodes and launcher."""
JOB = ("--partition", "--qos", "--account", "--time", "--directive")
"""Options for the scheduler."""
RANKS = ("--ranks-per-node", "--gpus-per-node", "--cpu-bind")
MORE_RANKS = ("--threads", "--device", "--ranks-per-device", "--devices", "--device-unit", "--mpi", "--master-port")
ENVIRONMENT = ("--python", "--env", "--env-prepend", "--module", "--activate", "--with")
CONTAINER = ("--container", "--runtime", "--bind")
CACHE = ("--cache", "--cache-set")
ALIVE = ("--restarts", "--spares", "--hang-after", "--until-done", "--check")
REST = ("--name", "--run-dir", "--watch", "--profile", "--comm-log", "--keep-caches", "--grace", "--no-placeholders")
OWN_RANKS = (*PLACE, "--arg", *RANKS, *ENVIRONMENT, *CONTAINER, "--cache")
"""Options of commands that start their own ranks in this allocation: doctor, bench, tune."""

_TITLES = {
    "where": (*PLACE, "--arg", *JOB),
    "ranks": (*RANKS, *MORE_RANKS),
    "environment": ENVIRONMENT,
    "container": (*CONTAINER, "--container-arg", "--host-libs"),
    "cooperative cache": CACHE,
    "failures": ALIVE,
    "run": REST,
}
"""The sections of `--help-all`."""
ALL = tuple(name for names in _TITLES.values() for name in names)
"""Options of run, plan and submit."""
COMMON = frozenset(
    {"--site", "--nodes", "--ranks-per-node", "--partition", "--account", "--time", "--python", "--env", "--module"}
    | {"--container", "--cache", "--restarts", "--until-done", "--name", "--watch"}
)
"""Frequent options: `--help` shows these, `--help-all` shows all."""

_TYPES = {"int": int, "float": float}


def add_request_options(
    parser: argparse.ArgumentParser, names: Sequence[str] = ALL, *, common: Container[str] = COMMON
) -> None:
    """Add these options of a request, in the sections of the help. `--help` shows those that are `common`."""
    parser.usage = f"{parser.prog} {USAGE}"
    for title, members in _TITLES.items():
        chosen = [name for name in members if name in names]
        if chosen:
            group = parser.add_argument_group(title)
            for name in chosen:
                action = group.add_argument(name, *_table()[name].get("short", ()), **_argument(name))
                if name not in common:
                    rare(action)


def _table() -> dict[str, dict[str, Any]]:
    return packaged_table(__file__, "request_options.toml")


def _argument(name: str) -> dict[str, Any]:
    """The arguments of argparse for an option."""
    told = {key: value for key, value in _table()[name].items() if key != "short"}
    if "type" in told:
        told["type"] = _TYPES[told["type"]]
    if told.get("action") == "append":
        told["default"] = []
    names = {"--scheduler": scheduler_names, "--launcher": launcher_names}
    return told | {"help": ", ".join(names[name]())} if name in names else told


def rare(action: argparse.Action) -> None:
    """Show an option with `--help-all` only."""
    action.rare = True  # type: ignore[attr-defined]


def add_here(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--here", action="store_true", help="plan for this machine, also on a login node")


def default_options() -> dict[str, Any]:
    """The default of every option of a request."""
    parser = argparse.ArgumentParser(add_help=False)
    add_request_options(parser)
    return vars(parser.parse_args([]))


def owners_text(option: str) -> str | None:
    """The commands that have a request option which another command refuses."""
    names = {spelling: name for name in ALL for spelling in (name, *_table()[name].get("short", ()))}
    name = names.get(option)
    if name is None:
        return None
    return "plan, submit and alloc have it" if name in JOB else "run, plan and submit have it"


_MAX_PROFILE_STEPS = 100_000
_CACHE_KEYS = ("memory", "store", "placement", "readers", "trace", "allow-other")
_SWITCH = {"on": True, "off": False}
_PLACEMENTS = {name: name for name in ("replicate", "partition")}


def cache_options(texts: list[str]) -> dict[str, Any]:
    """--cache-set KEY=VALUE as fields of the request."""
    found: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in _CACHE_KEYS:
            raise unknown_name("key of --cache-set", key, _CACHE_KEYS)
        if key == "memory":
            found["cache_budget_bytes"] = parse_size(value, "--cache-set memory")
        elif key == "readers":
            if not re.fullmatch(r"[1-9]\d{0,8}", value):
                raise UsageError(f"--cache-set {text}", hint="give 1 or more")
            found["cache_readers"] = int(value)
        elif key == "store":
            if not value:
                raise UsageError(
                    "--cache-set store has an empty value", hint="perhaps a variable of your shell is not set"
                )
            found["cache_store"] = value
        else:
            values: Mapping[str, object] = _PLACEMENTS if key == "placement" else _SWITCH
            if value not in values:
                raise UsageError(f"--cache-set {text}", hint=f"give {key}={' or '.join(values)}")
            found["cache_" + key.replace("-", "_")] = values[value]
    return found


def profile_option(text: str | None) -> dict[str, Any]:
    """--profile TOOL[:RANKS[:STEPS]]."""
    if text is None:
        return {}
    tool, _, rest = text.partition(":")
    ranks, colon, steps = rest.partition(":")
    if colon and not (re.fullmatch(r"\d{1,9}", steps) and 1 <= int(steps) <= _MAX_PROFILE_STEPS):
        raise UsageError(
            f"--profile {text}", hint=f"give 1 to {_MAX_PROFILE_STEPS} steps, because longer traces fill disks"
        )
    found: dict[str, Any] = {"profile": tool}
    if ranks:
        found["profile_ranks"] = ",".join(map(str, dict.fromkeys(parse_ranks(ranks, "--profile"))))
    return found | ({"profile_steps": int(steps)} if steps else {})


def ranks_option(text: str | None) -> str | None:
    if text is None or text == "all":
        return text
    return ",".join(map(str, dict.fromkeys(parse_ranks(text, "--comm-log"))))
