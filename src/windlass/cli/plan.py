"""Show what would run and why: argv, rank script, variables, binding map, mounts. Starts nothing."""

from __future__ import annotations

import argparse
import sys

from windlass.cli.options import add_request_options, parse_with_command, request_from
from windlass.cli.result import Result
from windlass.plan.show import plan_text
from windlass.run.planning import plan_request
from windlass.settings import current_environ


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.add_argument("--json", action="store_true", help="the plan itself, for `windlass diff` and `run --plan`")
    parser.add_argument("--explain", action="store_true", help="the reason and the source of every line")
    parser.add_argument("--no-script", action="store_true", help="leave out the rank script")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    return parse_with_command(parser, argv)


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    here = args.site is None and args.site_file is None
    plan = plan_request(request_from(args, environ), environ, here=here).plan
    text = plan_text(plan, explain=args.explain, script=not args.no_script, color=sys.stdout.isatty())
    return Result(text=text, data=plan, coloured=True)
