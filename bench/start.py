"""Start-up: how long N nodes take to import a module, and what the shared file system sees of it, in several ways.

    python bench/start.py --env ENV [--import torch] [--nodes 1,2,4] [--cases native,direct,cache] [--output FILE]

All nodes are on this machine: each has an address, a client of a shared file system, and a page cache of its own. The
shared file system counts calls and bytes, and can be made as slow as a real one. Cases take turns; medians with ranges.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import windlass
from startup.cases import CASES, StartResult, StartSetup, load_average, measure
from startup.rows import start_record
from startup.shared import Limits
from startup.stages import costs_text
from startup.workfolder import work_folder
from windlass.base.notation.counts import counted, parse_size
from windlass.base.settings import current_environ
from windlass.bench.cases import table_text
from windlass.bench.record import write_record
from windlass.bench.runner import checkout_commit
from windlass.errors import MachineError, UsageError, WindlassError, unknown_name


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table or the rows as JSON, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        print(run(args))
    except WindlassError as error:
        parser.error(f"{error.message} ({error.hint})")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--env", metavar="PATH", help="environment with bin/python (default: that of windlass)")
    parser.add_argument("--import", dest="module", default="torch", metavar="MODULE", help="module to import")
    parser.add_argument("--nodes", metavar="N,N…", help="sizes (default 1,2,4)")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="ranks on each node (default 1)")
    parser.add_argument("--cases", metavar="CASE,…", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--repeats", type=int, default=5, metavar="K", help="rounds (default 5)")
    parser.add_argument("--warmup", type=int, default=1, metavar="K", help="warm-up rounds, discarded (default 1)")
    parser.add_argument(
        "--stages", action="store_true", help="show how the time of a cache miss is spent (records always contain it)"
    )
    parser.add_argument("--latency", type=float, default=0.0, metavar="MS", help="latency of each call")
    parser.add_argument("--calls", type=float, default=0.0, metavar="RATE", help="calls a second, all nodes together")
    parser.add_argument("--bandwidth", metavar="SIZE", help="bytes a second for all nodes together, e.g. 200M")
    parser.add_argument("--work", metavar="DIR", help="folder for copies (default: a temporary one)")
    parser.add_argument("--output", metavar="FILE", help="write the record to this file")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def run(args: argparse.Namespace) -> str:
    """Measure and return what is printed."""
    env = Path(args.env).absolute() if args.env else Path(sys.prefix)
    if not (env / "bin" / "python").exists():
        raise UsageError(f"--env {env} has no bin/python", hint="give a virtual or conda environment")
    if not args.module.replace(".", "").replace("_", "").isalnum():
        raise UsageError(f"--import {args.module} is not the name of a module", hint="e.g. --import torch")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise MachineError(
            "no usable /dev/fuse: the benchmark cannot create its shared file system",
            hint="as root: modprobe fuse; in a container it needs the device",
        )
    cases = _cases(args.cases)
    sizes = _sizes(args.nodes or "1,2,4")
    if args.repeats < 1 or args.ranks < 1 or args.warmup < 0:
        raise UsageError(
            "--repeats and --ranks are 1 or more, --warmup is 0 or more", hint="leave an option out to use its default"
        )
    limits = Limits(
        latency_s=args.latency / 1000,
        calls_per_s=args.calls,
        bytes_per_s=float(parse_size(args.bandwidth, "--bandwidth")) if args.bandwidth else 0.0,
    )
    load = load_average()
    with work_folder(args.work) as work:
        setup = StartSetup(env=env, module=args.module, work=work, limits=limits, environ=current_environ())
        rows = measure(setup, cases, sizes, args.ranks, args.repeats, _tell, warm_up=args.warmup)
    shown = {"latency_ms": args.latency, "calls_per_s": args.calls, "bandwidth": args.bandwidth}
    return _result(args, rows, load, {"import": args.module, "limits": shown, "repeat": args.repeats})


def _result(args: argparse.Namespace, rows: list[StartResult], load: float, options: dict[str, object]) -> str:
    machine = {"cpus": os.cpu_count(), "load_before": load, "load_after": load_average()}
    record = start_record(
        [asdict(row) for row in rows],
        options=options,
        machine=machine,
        command=("python", "bench/start.py", *sys.argv[1:]),
        windlass=windlass.__version__,
        commit=checkout_commit(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    if args.output:
        write_record(Path(args.output), record)
    if args.json:
        return json.dumps([asdict(row) for row in rows], indent=1)
    lines = [table_text(record), *(f"not measured: {line}" for line in record.skipped)]
    if args.stages:
        lines += [
            "\n" + costs_text(f"{row.case} on {counted(row.nodes, 'node')}", row.costs) for row in rows if row.costs
        ]
    return "\n".join(lines)


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _cases(text: str | None) -> tuple[str, ...]:
    cases = tuple(case.strip() for case in text.split(",") if case.strip()) if text else CASES
    for case in cases:
        if case not in CASES:
            raise unknown_name("case", case, CASES)
    return cases


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--nodes {text!r}", hint="write 1,2,4") from None
    if not sizes or min(sizes) < 1 or max(sizes) > 200:
        raise UsageError(f"--nodes {text!r}", hint="numbers from 1 to 200")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
