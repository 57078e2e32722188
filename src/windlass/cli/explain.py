"""Explain one variable or option of a plan: its reason, its source, and the date on which the source was checked.

RUN is a run folder, the name of a run, or a plan that `windlass plan --json` wrote. With RUN alone, all settings of the
run are explained. Without it, the options choose the plan."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from windlass.base.notation.style import width_of
from windlass.base.settings import current_environ, read_settings
from windlass.cli.option_groups import add_here, add_request_options
from windlass.cli.options import PLACEHOLDER_COMMAND, join_values, option_action, request_from
from windlass.cli.show import Result
from windlass.errors import UsageError, WindlassError
from windlass.model.plan import Plan
from windlass.plan.explain import find_name, occurrences_text
from windlass.plan.plan import make_plan
from windlass.plan.show import plan_text
from windlass.run.folder import read_plan
from windlass.run.planning import plan_request
from windlass.run.supervise.runs import find_run
from windlass.sites.catalog import load_site, site_names

_CHOOSING = (
    *("--site", "--nodes", "--partition", "--account", "--time", "--ranks-per-node"),
    *("--env", "--arg", "--directive", "--with", "--container"),
)
"""Options that choose a plan. With others: save it with `windlass plan --json` and give its file as RUN."""
PROGRESS = "planning"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser, _CHOOSING)
    add_here(parser)
    parser.usage = f"{parser.prog} NAME [RUN | options] | RUN"
    parser.add_argument("name_to_explain", metavar="NAME", help="a variable or an option, e.g. NCCL_NET or --cpu-bind")
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run, a saved plan or a job file")
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse the options. The name may come before or after them, and may look like an option (`--cpu-bind`)."""
    options, words = join_values(argv), list[str]()
    while len(words) < 2 and (at := _find(parser, options)) is not None:
        words.append(options.pop(at))
    if words[1:] and words[1].startswith("-"):
        parser.error(f"unrecognized arguments: {' '.join(words[1:])}")
    args = parser.parse_args([*options, "--", *words])
    args.kind, args.command = "command", [PLACEHOLDER_COMMAND]
    return args


def _find(parser: argparse.ArgumentParser, argv: list[str]) -> int | None:
    """Position of the name: the first argument that is neither an option of windlass nor its value."""
    at = 0
    while at < len(argv):
        action = option_action(parser, argv[at])
        if action is None:
            return at
        at += 1
        if action.nargs == 0 or "=" in argv[at - 1]:
            continue
        if at == len(argv) or option_action(parser, argv[at]):
            return at - 1  # an option of windlass without a value here
        at += 1
    return None


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    config = read_settings(environ).folders
    if (saved := _saved_plan(args, environ)) is not None:
        if args.run is None:
            return Result(text=plan_text(saved, explain=True, columns=width_of(sys.stdout, environ)), data=saved)
        site = load_site(saved.site, partition=saved.partition, folders=config)
        names = [one.name for one in saved.request.components] or [""]
        found = {
            name: find_name(args.name_to_explain, plan, site)
            for name, plan in zip(names, saved.parts or [saved], strict=True)
        }
        heads = {name: f"component {name}\n" if name else "" for name in found}
        text = "\n\n".join(heads[name] + occurrences_text(one) for name, one in found.items())
        return Result(text=text, data=found if saved.parts else found[""])
    request = request_from(args, environ)
    planned = plan_request(request, environ, here=args.here or None)
    plain = msgspec.structs.replace(request, env=(), unset=(), launcher_args=(), directives=(), container_args=())
    default = None
    if plain != request:
        with contextlib.suppress(WindlassError):  # without a valid default plan, nothing was replaced
            default, _ = make_plan(plain, planned.context)
    others = () if args.site is not None else (load_site(name, folders=config) for name in site_names(config))
    findings = find_name(args.name_to_explain, planned.plan, planned.context.site, default=default, others=others)
    return Result(text=occurrences_text(findings), data=findings)


def _saved_plan(args: argparse.Namespace, environ: Mapping[str, str]) -> Plan | None:
    """The plan of RUN, or of NAME if that is a run. None: the options make the plan."""
    text = args.run or args.name_to_explain
    if text.endswith(".toml"):
        args.kind, args.command = "script", [text]
        return plan_request(request_from(args, environ), environ, here=args.here or None).plan
    if Path(text).is_file():
        return read_plan(text)
    try:
        return read_plan(find_run(text, read_settings(environ).runs_dir).path)
    except UsageError:
        if args.run is None:
            return None
        raise
