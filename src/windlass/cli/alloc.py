"""Get an interactive allocation, with the directives that `submit` would write for this machine, and a shell in it."""

from __future__ import annotations

import argparse

from windlass.base.notation.shell import quote_words
from windlass.base.settings import current_environ
from windlass.cli.option_groups import JOB, add_request_options
from windlass.cli.options import parse_allocation_options, request_from
from windlass.cli.show import Result, say
from windlass.run.submit import enter_allocation, plan_allocation

_PLACE = ("--site", "--nodes", "--scheduler")
_RANKS = ("--ranks-per-node", "--gpus-per-node", "--device", "--ranks-per-device")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser, (*_PLACE, *JOB, *_RANKS, "--with", "--spares", "--name"))
    parser.usage = f"{parser.prog} [options] [-- COMMAND [ARGS…]]"
    parser.add_argument("--dry-run", action="store_true", help="print the command without running it")
    parser.add_argument(
        "--json", action="store_true", help="with --dry-run: print the command and the reason for each argument"
    )


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    return parse_allocation_options(parser, argv)


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    inside = tuple(args.inside)
    allocation = plan_allocation(request_from(args, environ), environ, inside)
    for remark in allocation.plan.remarks:
        if remark.severity == "warning":
            say(f"windlass: warning: {remark.line()}")
    if not args.dry_run:
        enter_allocation(allocation, environ)
    data = {"argv": allocation.argv, "arguments": allocation.arguments}
    return Result(text=quote_words(allocation.argv), data=data, foreign=True)
