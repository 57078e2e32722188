"""`windlass bench start --curves`: one sweep over latency, calls and bandwidth; goes on where its record ends."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import windlass
from windlass.base.notation.counts import parse_size
from windlass.bench.reading import read_record
from windlass.bench.record import BenchRecord, Measurement, Where, new_record, write_record
from windlass.bench.runner import checkout_commit
from windlass.bench.start.cases import StartSetup, load_average
from windlass.bench.start.curves import (
    AXES,
    WAYS,
    Sweep,
    curves_svg,
    curves_text,
    measure_curves,
    plot_name,
    renewed_curves,
    sweep,
)
from windlass.cli.result import Result
from windlass.errors import UsageError
from windlass.node.sys.atomic import replace_text
from windlass.node.sys.reading import read_text

_LATENCIES, _RATES, _BANDWIDTHS = "0.25,0.5,1,2,4", "500,1000,2000,4000,8000", "200M,500M,1G,2G"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("curves")
    ways = ", ".join(WAYS)
    group.add_argument(
        "--curves", action="store_true", help=f"sweep over latency, calls and bandwidth ({ways}); --record resumes"
    )
    group.add_argument("--latencies", default=_LATENCIES, metavar="MS,…", help=f"default {_LATENCIES}")
    group.add_argument("--rates", default=_RATES, metavar="RATE,…", help=f"calls a second; default {_RATES}")
    group.add_argument("--bandwidths", default=_BANDWIDTHS, metavar="SIZE,…", help=f"default {_BANDWIDTHS}")
    group.add_argument(
        "--within", type=float, default=3600.0, metavar="S", help="begin no point that would end later (default 3600)"
    )


def run(args: argparse.Namespace, setup: StartSetup, sizes: tuple[int, ...], tell: Callable[[str], None]) -> Result:
    """Measures what the record does not have yet, and shows all of it. Every point is in the record at once."""
    if len(sizes) != 1:
        raise UsageError("--curves are of one number of nodes", hint="give --nodes 4")
    wanted = Sweep(
        points=sweep(_numbers(args.latencies, "--latencies"), _numbers(args.rates, "--rates"), _bandwidths(args)),
        ways=tuple(args.cases.split(",")) if args.cases else WAYS,
        nodes=sizes[0],
        ranks=args.ranks,
        within_s=args.within,
    )
    unknown = [way for way in wanted.ways if way not in WAYS]
    if unknown:
        raise UsageError(f"--curves has no case {unknown[0]}", hint=f"of {', '.join(WAYS)}")
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
    if args.page:
        if not args.record or not args.plot:
            raise UsageError("--page shows a record and its charts", hint="add --record FILE --plot FILE.svg")
        page = Path(args.page)
        text = renewed_curves(read_text(page, follow=True), args.record, record, Path(args.plot).name)
        replace_text(page, text, 0o644)
    lines = [curves_text(record), *(f"not measured: {line}" for line in record.skipped)]
    return Result(text="\n".join(lines), data=record.rows)


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
        command=("windlass", "bench", *args.words),
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
