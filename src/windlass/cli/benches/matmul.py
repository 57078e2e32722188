"""The honest ceiling of a device: large matrix products on random numbers, in each type that it has."""

from __future__ import annotations

import argparse

from windlass.bench import ceilings
from windlass.bench.matmul import TYPES
from windlass.bench.runner import Part
from windlass.cli.benches.launching import add_run_options, finish, open_bench
from windlass.cli.result import Result
from windlass.errors import UsageError, unknown_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    what = parser.add_argument_group("what")
    what.add_argument("--types", metavar="LIST", help=f"of {', '.join(TYPES)} (default: all)")
    what.add_argument("--size", type=int, default=0, metavar="N", help="N x N x N (default: 8192; 1024 on the CPU)")
    what.add_argument("--seconds", type=float, default=3.0, help="load before the sustained figure is taken")


def main(args: argparse.Namespace) -> Result:
    for kind in args.types.split(",") if args.types else ():
        if kind not in TYPES:
            raise unknown_name("type", kind, TYPES)
    if args.size < 0 or args.seconds <= 0:
        raise UsageError("--size and --seconds must be positive")
    words = ["--size", str(args.size), "--seconds", str(args.seconds)]
    words += ["--types", args.types] if args.types else []
    words += ["--device", args.device] if args.device else []
    bench = open_bench("matmul", args, {"types": args.types or ",".join(TYPES), "seconds": args.seconds})
    one = None if args.nodes or args.ranks_per_node else 1
    outcome = bench.run(Part(name="matmul", program="matmul", words=tuple(words), nodes=one, ranks_per_node=one))
    record = bench.record(ceilings.rows_of(outcome) if outcome else [])
    return finish(bench, record, args)
