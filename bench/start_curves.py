"""Start-up over the latency, calls and bandwidth of a shared file system: from which point on which way wins.

    python bench/start_curves.py --nodes 4 --record FILE [--latencies 0.5,1,2] [--within 3600] [--plot FILE.svg]

One round of each point. Every point is in the record as soon as it is measured, and a sweep with the same record goes
on where the last one stopped. `--within 0` measures nothing and prints the record again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import windlass
from startup.cases import StartSetup, load_average
from startup.curves import (
    AXES,
    WAYS,
    Sweep,
    curves_svg,
    curves_text,
    measure_curves,
    plot_name,
    sweep,
)
from startup.shared import Limits
from startup.workfolder import work_folder
from windlass.base.notation.counts import parse_size
from windlass.base.settings import current_environ
from windlass.bench.reading import read_record
from windlass.bench.record import BenchRecord, Measurement, Where, new_record, write_record
from windlass.bench.runner import checkout_commit
from windlass.errors import UsageError, WindlassError
from windlass.node.sys.atomic import replace_text

_LATENCIES, _RATES, _BANDWIDTHS = "0.25,0.5,1,2,4", "500,1000,2000,4000,8000", "200M,500M,1G,2G"


def main(argv: list[str] | None = None) -> int:
    """Measure what the record does not have yet, and print all of it. Every point is written at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", metavar="PATH", help="environment with bin/python (default: that of windlass)")
    parser.add_argument("--import", dest="module", default="torch", metavar="MODULE")
    parser.add_argument("--nodes", type=int, default=4, metavar="N")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="ranks on each node (default 1)")
    parser.add_argument("--cases", metavar="CASE,…", help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--work", metavar="DIR", help="folder for copies (default: a temporary one)")
    parser.add_argument("--latencies", default=_LATENCIES, metavar="MS,…", help=f"default {_LATENCIES}")
    parser.add_argument("--rates", default=_RATES, metavar="RATE,…", help=f"calls a second; default {_RATES}")
    parser.add_argument("--bandwidths", default=_BANDWIDTHS, metavar="SIZE,…", help=f"default {_BANDWIDTHS}")
    parser.add_argument("--within", type=float, default=3600.0, metavar="S", help="begin no point that would end later")
    parser.add_argument("--plot", metavar="FILE", help="write a chart of each limit: FILE-latency.svg and so on")
    parser.add_argument("--record", metavar="FILE", help="write rows, machine and settings; continue what it has")
    args = parser.parse_args(argv)
    try:
        with work_folder(args.work) as work:
            env = Path(args.env).absolute() if args.env else Path(sys.prefix)
            setup = StartSetup(env=env, module=args.module, work=work, limits=Limits(), environ=current_environ())
            print(run(args, setup, print))
    except WindlassError as error:
        parser.error(f"{error.message} ({error.hint})")
    return 0


def run(args: argparse.Namespace, setup: StartSetup, tell: Callable[[str], None]) -> str:
    """Measure and return the table."""
    wanted = Sweep(
        points=sweep(_numbers(args.latencies, "--latencies"), _numbers(args.rates, "--rates"), _bandwidths(args)),
        ways=tuple(args.cases.split(",")) if args.cases else WAYS,
        nodes=args.nodes,
        ranks=args.ranks,
        within_s=args.within,
    )
    unknown = [way for way in wanted.ways if way not in WAYS]
    if unknown:
        raise UsageError(f"no case {unknown[0]}", hint=f"of {', '.join(WAYS)}")
    before = _record_before(args, wanted)
    began = load_average()

    def keep(rows: Sequence[Measurement], skipped: Sequence[str] = ("the sweep was stopped",)) -> BenchRecord:
        record = _record(args, wanted, rows, skipped, began)
        if args.record:
            write_record(Path(args.record), record)
        return record

    if before is not None and args.within <= 0:
        record = before
    else:
        known = before.rows if before else ()
        record = keep(*measure_curves(setup, wanted, known, tell, keep))
    if args.plot:
        _draw(record, Path(args.plot))
    lines = [curves_text(record), *(f"not measured: {line}" for line in record.skipped)]
    return "\n".join(lines)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(",") if part)
    except ValueError:
        raise UsageError(f"{option} {text!r}", hint="write numbers with commas between, as in 0.5,1,2") from None
    if any(value < 0 for value in found):
        raise UsageError(f"{option} {text!r}", hint="a limit is not below zero")
    return found


def _bandwidths(args: argparse.Namespace) -> tuple[float, ...]:
    return tuple(float(parse_size(part, "--bandwidths")) for part in args.bandwidths.split(",") if part)


def _record_before(args: argparse.Namespace, wanted: Sweep) -> BenchRecord | None:
    """What an earlier sweep has measured. `UsageError` where that was something else."""
    if not args.record or not Path(args.record).exists():
        return None
    record = read_record(args.record)
    same = record.case == "start" and record.options.get("curves") and record.options.get("import") == args.module
    if not same or record.where.nodes != wanted.nodes or record.where.ranks_per_node != wanted.ranks:
        raise UsageError(f"{args.record} is the record of something else", hint="give another --record to begin anew")
    return record


def _record(
    args: argparse.Namespace, wanted: Sweep, rows: Sequence[Measurement], skipped: Sequence[str], load: float
) -> BenchRecord:
    loads = {"load_before": load, "load_after": load_average()}
    return new_record(
        "start",
        where=Where(nodes=wanted.nodes, ranks_per_node=wanted.ranks),
        device={"kind": "cpu", "name": "CPU", "cpus": os.cpu_count()} | loads,
        options={"import": args.module, "curves": True, "repeat": 1},
        rows=tuple(rows),
        skipped=tuple(skipped),
        remarks=(f"all nodes were on one machine of {os.cpu_count()} CPUs; one round of each point",),
        command=("python", "bench/start_curves.py", *sys.argv[1:]),
        windlass=windlass.__version__,
        commit=checkout_commit(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def _draw(record: BenchRecord, path: Path) -> None:
    """One file for each limit, beside each other."""
    for axis in AXES:
        svg = curves_svg(record, axis)
        if svg:
            replace_text(path.with_name(plot_name(path.name, axis)), svg, 0o644)


if __name__ == "__main__":
    sys.exit(main())
