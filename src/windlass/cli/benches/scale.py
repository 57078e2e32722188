"""The same benchmark at several sizes: what did more nodes (or ranks) buy? CASE: collectives, ddp, synthetic or llm.

Work per device stays the same, so the rate of a device should too."""

from __future__ import annotations

import argparse

from windlass.bench import collectives as collective_rows
from windlass.bench import scaling, training
from windlass.bench.records import Row
from windlass.bench.runner import Outcome, Part
from windlass.cli.benches import collectives, ddp, llm, synthetic
from windlass.cli.benches.launching import add_run_options, finish, open_bench, size_here
from windlass.cli.result import Result
from windlass.errors import UsageError, unknown_name

_CASES = {"collectives": collectives, "ddp": ddp, "synthetic": synthetic, "llm": llm}
_PROGRAMS = {"collectives": "collectives", "ddp": "train", "synthetic": "synthetic", "llm": "train"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    parser.usage = f"{parser.prog} CASE --nodes 1,2,4 [options of CASE]"
    parser.add_argument("case", metavar="CASE", help=", ".join(_CASES))
    nodes = parser._option_string_actions["--nodes"]  # the same option as everywhere, but several sizes
    nodes.type, nodes.metavar, nodes.help = None, "LIST", "numbers of nodes, as in 1,2,4,8"
    parser.add_argument("--ranks", metavar="LIST", help="numbers of ranks in one node instead, as in 1,2,4")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The options of the case belong to the same command line."""
    case = next((word for word in argv if not word.startswith("-")), None)
    if case in _CASES:
        _CASES[case].add_case_options(parser)
    elif case is not None and not {"-h", "--help"} & set(argv):
        raise unknown_name("case", case, _CASES)
    return parser.parse_args(argv)


def main(args: argparse.Namespace) -> Result:
    if bool(args.nodes) == bool(args.ranks):
        raise UsageError("give --nodes 1,2,4 or --ranks 1,2,4", hint="one of the two")
    counts = scaling.parse_counts(args.nodes or args.ranks, "--nodes" if args.nodes else "--ranks")
    by_nodes, args.nodes = bool(args.nodes), None
    bench = open_bench("scale", args, {"case": args.case, "sizes": list(counts)})
    each = args.ranks_per_node or (size_here(bench)[1] if by_nodes else None)
    sizes = [(count, each) if by_nodes else (1, count) for count in counts]
    for nodes, ranks in sizes:
        size_here(bench, nodes=nodes, ranks_per_node=ranks)  # a size that cannot be is told before any is measured
    measured = []
    for nodes, ranks in sizes:
        outcome = bench.run(
            Part(
                name=f"{args.case}-{nodes}n{nodes * (ranks or 1)}r",
                program=_PROGRAMS[args.case],
                words=_words(args, nodes * (ranks or 1)),
                nodes=nodes,
                ranks_per_node=ranks,
            ),
            alone=False,
        )
        found = scaling.figure_of(args.case, _rows(args, outcome)) if outcome else None
        measured += [found] if found else []
        if bench.interrupted:
            break
    return finish(bench, bench.record(scaling.scaled(args.case, measured)), args)


def _words(args: argparse.Namespace, world_size: int) -> tuple[str, ...]:
    if args.case == "ddp":
        return ddp.case_words(args, args.model.split(",")[0], parallel=True)
    if args.case == "llm":
        return llm.case_words(args, world_size)
    return collectives.case_words(args) if args.case == "collectives" else synthetic.case_words(args)


def _rows(args: argparse.Namespace, outcome: Outcome) -> list[Row]:
    plan = outcome.plan
    if args.case == "collectives":
        return [collective_rows.row_from(told, plan.world_size, plan.nodes) for told in outcome.of_kind("row")]
    if args.case == "synthetic":
        row = synthetic.row_from(args, outcome)
    else:
        row = training.row_of(outcome) if args.case == "ddp" else llm.row_from(outcome)
    return [row] if row else []
