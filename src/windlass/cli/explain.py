"""Why is this variable or flag there: the reason, the file it comes from, and when somebody last checked it.

Options before the name choose the plan to look at, as in: windlass explain NCCL_NET --site frontier --nodes 4"""

from __future__ import annotations

import argparse

from windlass.cli.options import add_request_options
from windlass.cli.planning import plan_from
from windlass.cli.result import Result
from windlass.launch.explain import find_name, findings_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.usage = f"{parser.prog} NAME [options of run]"
    parser.add_argument("name_to_explain", metavar="NAME", help="a variable or an option, as in NCCL_NET or --cpu-bind")
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """A name may look like an option (`--cpu-bind`): the first word is always the name."""
    first = argv[:1] if argv and argv[0] not in {"-h", "--help"} else []
    args = parser.parse_args([*argv[len(first) :], *(["--", *first] if first else [])])
    args.kind, args.command = "command", ["COMMAND"]
    return args


def main(args: argparse.Namespace) -> Result:
    plan, _, around = plan_from(args, here=args.site is None and args.site_file is None)
    findings = find_name(args.name_to_explain, plan, around.context.site)
    return Result(text=findings_text(findings), data=findings)
