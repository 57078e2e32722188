"""The same benchmark at several sizes, as a command: the options of the case are part of the same command line."""

from __future__ import annotations

import argparse

from windlass.bench import scale
from windlass.bench.options import add_options, asked
from windlass.bench.scale import SCALED, parse_counts, run
from windlass.cli.benches.launching import RUN_OPTIONS, finish, open_bench
from windlass.cli.show import Result
from windlass.errors import UsageError, unknown_name

__doc__ = scale.__doc__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} CASE --nodes 1,2,4 [options of CASE]"
    parser.add_argument("case", metavar="CASE", help=", ".join(SCALED))
    parser.add_argument("--nodes", metavar="LIST", help="numbers of nodes, e.g. 1,2,4,8")
    parser.add_argument("--ranks", metavar="LIST", help="numbers of ranks on one node instead, e.g. 1,2,4")


def parse(parser: argparse.ArgumentParser, argv: list[str], given: argparse.Namespace) -> argparse.Namespace:
    case = next((word for word in argv if not word.startswith("-")), None)
    if case in SCALED:
        add_options(parser, SCALED[case][0], without=RUN_OPTIONS)
    elif case is not None and not {"-h", "--help", "--help-all"} & set(argv):
        raise unknown_name("case", case, SCALED)
    return parser.parse_args(argv, given)


def main(args: argparse.Namespace) -> Result:
    if bool(args.nodes) == bool(args.ranks):
        raise UsageError("give --nodes 1,2,4 or --ranks 1,2,4", hint="one of the two")
    counts = parse_counts(args.nodes or args.ranks, "--nodes" if args.nodes else "--ranks")
    by_nodes, args.nodes = bool(args.nodes), None
    bench = open_bench("scale", args, asked(args, SCALED[args.case][0]))
    return finish(bench, run(bench, args.case, counts, by_nodes=by_nodes), args)
