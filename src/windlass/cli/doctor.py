"""Check this machine, or every node of this allocation at once, before a run: devices, network, limits, room, clocks,
the environment of the ranks, a short all-reduce. Says what is wrong, on which nodes, and what to do about it.

A script and its options may follow, as for `windlass run`: then they are checked too, and not run."""

from __future__ import annotations

import argparse

from windlass.base.settings import current_environ
from windlass.cli.option_groups import add_request_options
from windlass.cli.options import join_values, request_from, split_command
from windlass.cli.result import Result
from windlass.cli.working import tell
from windlass.diagnose.doctor.examine import examine
from windlass.diagnose.doctor.finding import health_lines
from windlass.diagnose.doctor.patient import Level

_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.usage = f"{parser.prog} [--quick | --full] [options of run] [SCRIPT.py [ARGS…]]"
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--quick", action="store_true", help="seconds: without torch and without collectives")
    level.add_argument("--full", action="store_true", help="minutes: find the slow node, link or device by bisection")
    parser.add_argument("--all", action="store_true", help="show the checks that do not apply here too")
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    options, kind, command = split_command(parser, argv)
    args = parser.parse_args(join_values(options))
    args.kind, args.command = kind if command else "none", command
    return args


def progress(args: argparse.Namespace) -> str | None:
    return "checking"


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    level: Level = "quick" if args.quick else "full" if args.full else "default"
    health = examine(request_from(args, environ), environ, level, tell)
    text = "\n".join(health_lines(health, everything=args.all))
    return Result(text=text, data=health, exit_code=_FAILED if health.status == "fail" else 0)
