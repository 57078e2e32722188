"""Show what would run and why: argv, rank script, variables, binding map, mounts. Starts nothing.

Works anywhere and for any site; without a script it shows what would be around one. On a login node the plan is for
compute nodes, as `submit` makes it; inside an allocation and on a workstation it is for this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from windlass.base.notation.style import in_colour, width_of
from windlass.base.settings import current_environ
from windlass.cli.option_groups import add_here, add_request_options
from windlass.cli.options import PLACEHOLDER_COMMAND, parse_with_command, request_from
from windlass.cli.show import Result
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.node.sys.atomic import replace_text
from windlass.plan.show import headline, plan_text
from windlass.run.planning import plan_request

PROGRESS = "planning"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    add_here(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the plan as JSON, for `windlass diff` and `run --plan`"
    )
    parser.add_argument("--explain", action="store_true", help="print the reason and the source of every line")
    parser.add_argument("--script", action="store_true", help="print the rank script too")
    parser.add_argument("--picture", metavar="FILE", help="write the map of a node as an SVG picture")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    args = parse_with_command(parser, argv, refused=("--explain", "--script", "--here", "--picture"))
    if not args.command:
        args.kind, args.command = "command", [PLACEHOLDER_COMMAND]
    args.script_may_be_missing = True
    return args


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    plan = plan_request(request_from(args, environ), environ, here=args.here or None).plan
    if args.picture:
        _write_picture(plan, Path(args.picture))
    columns = width_of(sys.stdout, environ)
    text = plan_text(
        plan,
        explain=args.explain,
        script=args.script,
        color=in_colour(sys.stdout.isatty(), environ),
        width=min(columns or 110, 110),
        columns=columns,
    )
    return Result(text=text, data=plan, coloured=True)


def _write_picture(plan: Plan, path: Path) -> None:
    """Write the picture. Raises `UsageError` if there is nothing to draw or the file cannot be written."""
    from windlass.sites.topology.picture import node_picture  # imported here: rarely needed, and slow

    drawn = node_picture(plan.binding, plan.topology, headline(plan))
    if not drawn:
        hint = "run it inside a job, which reads the node, or draw a machine of the catalog with --site NAME"
        raise UsageError(f"--picture: the cores of a node of {plan.site} are not known here", hint=hint)
    try:
        replace_text(path, drawn, 0o644)
    except OSError as error:
        raise UsageError(f"--picture: {path} cannot be written: {error.strerror}", hint="give another path") from None
