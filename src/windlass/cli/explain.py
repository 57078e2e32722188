"""Why is this variable or flag there: the reason, the file it comes from, and when somebody last checked it.

Options choose the plan to look at, as in: windlass explain NCCL_NET --site frontier --nodes 4"""

from __future__ import annotations

import argparse
import contextlib

import msgspec

from windlass.base.settings import current_environ, read_settings
from windlass.cli.option_groups import add_here, add_request_options
from windlass.cli.options import PLACEHOLDER_COMMAND, join_values, option_action, request_from
from windlass.cli.result import Result
from windlass.errors import WindlassError
from windlass.plan.explain import find_name, occurrences_text
from windlass.plan.plan import make_plan
from windlass.run.planning import plan_request
from windlass.sites.catalog import load_site, site_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    add_here(parser)
    parser.usage = f"{parser.prog} NAME [options of run]"
    parser.add_argument("name_to_explain", metavar="NAME", help="a variable or an option, as in NCCL_NET or --cpu-bind")
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The name may stand before or after the options, and may look like one itself (`--cpu-bind`)."""
    argv = join_values(argv)
    at = _find(parser, argv)
    rest = argv if at is None else [*argv[:at], *argv[at + 1 :], "--", argv[at]]
    args = parser.parse_args(rest)
    args.kind, args.command = "command", [PLACEHOLDER_COMMAND]
    return args


def _find(parser: argparse.ArgumentParser, argv: list[str]) -> int | None:
    """Where the name is: the first word that is neither an option of ours nor the value of one."""
    at = 0
    while at < len(argv):
        action = option_action(parser, argv[at])
        if action is None:
            return at
        at += 1
        if action.nargs == 0 or "=" in argv[at - 1]:
            continue
        if at == len(argv) or option_action(parser, argv[at]):
            return at - 1  # an option of ours that has no value here
        at += 1
    return None


def progress(args: argparse.Namespace) -> str | None:
    return "planning"


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    request = request_from(args, environ)
    planned = plan_request(request, environ, here=args.here or None)
    plain = msgspec.structs.replace(request, env=(), unset=(), launcher_args=(), directives=(), container_args=())
    default = None
    if plain != request:
        with contextlib.suppress(WindlassError):  # what cannot be planned has been replaced by nothing
            default, _ = make_plan(plain, planned.context)
    config = read_settings(environ).config_dir
    named = args.site is not None or args.site_file is not None
    others = () if named else (load_site(name, config_dir=config) for name in site_names(config))
    findings = find_name(args.name_to_explain, planned.plan, planned.context.site, default=default, others=others)
    return Result(text=occurrences_text(findings), data=findings)
