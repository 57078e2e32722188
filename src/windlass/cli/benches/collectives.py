"""Time and check collectives over all ranks; columns, formulas and average as nccl-tests has them."""

from __future__ import annotations

import argparse

from windlass.bench import collectives
from windlass.bench.runner import Part
from windlass.bench.sizes import parse_sizes
from windlass.cli.benches.launching import add_run_options, finish, open_bench
from windlass.cli.result import Result
from windlass.errors import UsageError, unknown_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    add_case_options(parser)


def add_case_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--op", default="all_reduce", metavar="LIST", help=f"all, or of {', '.join(collectives.OPS)}")
    what.add_argument("--sizes", default="auto", metavar="RANGE", help="64M; 1K,1M; 1M:8G:2 (default on devices)")
    what.add_argument("--dtype", default="float", help=", ".join(collectives.DTYPES))
    what.add_argument("--redop", default="sum", help=", ".join(collectives.REDOPS))
    what.add_argument("--root", type=int, default=0)
    what.add_argument("--iters", type=int, default=20)
    what.add_argument("--warmup", type=int, default=5)
    what.add_argument("--most-seconds", type=float, default=20.0, help="fewer iterations of a size that takes longer")
    what.add_argument("--backend", help="default: nccl (RCCL too), xccl or gloo, after the device")
    what.add_argument("--no-check", action="store_true", help="leave out the check of the results")


def case_words(args: argparse.Namespace) -> tuple[str, ...]:
    """The rank program's arguments; values that cannot be are refused before anything starts."""
    ops = collectives.parse_ops(args.op)
    if args.sizes != "auto":
        parse_sizes(args.sizes)
    for name, value, known in (
        ("type", args.dtype, collectives.DTYPES),
        ("reduction", args.redop, collectives.REDOPS),
    ):
        if value not in known:
            raise unknown_name(name, value, known)
    if args.iters < 1 or args.warmup < 0 or args.root < 0 or args.most_seconds <= 0:
        raise UsageError("--iters must be 1 or more, --warmup and --root 0 or more, --most-seconds positive")
    words = ["--op", ",".join(ops), "--sizes", args.sizes, "--dtype", args.dtype, "--redop", args.redop]
    words += ["--root", str(args.root), "--iters", str(args.iters), "--warmup", str(args.warmup)]
    words += ["--most-seconds", str(args.most_seconds)]
    words += ["--device", args.device] if args.device else []
    words += ["--backend", args.backend] if args.backend else []
    return (*words, *(["--no-check"] if args.no_check else []))


def main(args: argparse.Namespace) -> Result:
    words = case_words(args)
    options = {"op": args.op, "sizes": args.sizes, "dtype": args.dtype, "redop": args.redop, "iters": args.iters}
    bench = open_bench("collectives", args, options | {"warmup": args.warmup})
    outcome = bench.run(Part(name="collectives", program="collectives", words=words))
    rows = []
    if outcome is not None:
        plan = outcome.plan
        rows = [collectives.row_from(told, plan.world_size, plan.nodes) for told in outcome.of_kind("row")]
    record = bench.record(rows, remarks=collectives.wrong_remarks(rows))
    return finish(bench, record, args)
