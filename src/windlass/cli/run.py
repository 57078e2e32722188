"""Run a script on this machine, or on all nodes of this allocation."""

from __future__ import annotations

import argparse
import sys

from windlass import api
from windlass.base.settings import current_environ
from windlass.cli.option_groups import ALL, COMMON, JOB, add_request_options, rare
from windlass.cli.options import parse_with_command, request_from
from windlass.cli.show import Result
from windlass.cli.trusting import asking_for_trust
from windlass.cli.watch_view import WatchView, watch_view
from windlass.errors import UsageError
from windlass.node.sys.reading import MAX_BYTES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    used = [name for name in ALL if name not in {"--qos", "--time", "--directive"}]  # for jobs not yet submitted
    add_request_options(parser, used, common=COMMON.difference(JOB))
    parser.add_argument("--show", default="0", metavar="RANKS", help="ranks to show: 0 (default), 0,3-5, all, none")
    parser.add_argument("--quiet", "-q", action="store_true", help="print only errors")
    rare(parser.add_argument("--plan", metavar="FILE", help="run a saved plan (- reads it from standard input)"))
    rare(parser.add_argument("--signed-by", metavar="DIGEST", help="digest of the key of --plan, or of its text"))
    rare(parser.add_argument("--allow-login", action="store_true", help="run although this looks like a login node"))


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    args = parse_with_command(parser, argv)
    if args.plan is not None:
        beside = {"help", "help_all", "plan", "signed_by", "show", "quiet", "allow_login", "run_dir"}
        for action in parser._actions:
            if action.dest not in beside and getattr(args, action.dest) != action.default:
                raise UsageError(
                    f"{action.option_strings[0]} cannot be combined with --plan",
                    hint="make a new plan with `windlass plan --json`, or leave --plan out",
                )
        if args.command:
            raise UsageError("--plan and a command were given", hint="the plan contains the command: leave yours out")
    return args


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    drawn: list[WatchView] = []
    view = api.terminal_view(args.show, sys.stdout, sys.stderr, environ)
    if args.watch and sys.stdout.isatty():
        view = watch_view(args.show, environ, drawn)
    if args.plan:
        content = sys.stdin.buffer.read(MAX_BYTES) if args.plan == "-" else None
        run = asking_for_trust(
            lambda: api.saved_run(
                args.plan,
                environ=environ,
                view=view,
                run_dir=args.run_dir,
                signed_by=args.signed_by or "",
                content=content,
                quiet=args.quiet,
            ),
            environ,
            in_jobs=not args.signed_by,  # a batch script cannot answer a question
        )
    else:
        request = request_from(args, environ)
        run = api.new_run(request, environ=environ, view=view, allow_login=args.allow_login, quiet=args.quiet)
    try:
        return Result(data=None, exit_code=api.start(run).exit_code)
    finally:
        for screen in drawn:
            screen.close()
