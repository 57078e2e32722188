"""Start-up: how long N nodes take to import a module, and what the shared file system sees of it, in several ways.

All nodes are on this machine: each has an address, a client of a shared file system, and a page cache of its own. The
shared file system counts calls and bytes, and can be made as slow as a real one. Cases take turns; medians with ranges.

With --push one file goes to all nodes instead, over links of a known rate (--link, needs root) or over loopback beside
a plain copy: by `windlass stage` with its several readers and with one, by Slurm's sbcast and by MPI_Bcast.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import windlass
from windlass.base.notation.counts import counted
from windlass.base.notation.sizes import parse_size
from windlass.base.settings import current_environ
from windlass.bench.cases import table_text
from windlass.bench.reading import read_record
from windlass.bench.record import write_record
from windlass.bench.runner import checkout_commit
from windlass.bench.start.cases import CASES, StartResult, StartSetup, load_average, measure
from windlass.bench.start.chart import plot_svg
from windlass.bench.start.measured import stage_costs
from windlass.bench.start.push import LINK_CASES, LOOPBACK_CASES, PushResult, PushSetup, measure_push
from windlass.bench.start.rows import start_record
from windlass.bench.start.shared import Limits
from windlass.bench.start.simulate import FANOUT, WAYS, predict
from windlass.bench.start.simulated_page import renewed
from windlass.bench.start.stages import costs_text
from windlass.bench.start.workfolder import work_folder
from windlass.cli.benches import start_curves
from windlass.cli.result import Result
from windlass.errors import MachineError, UsageError, unknown_name
from windlass.run.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--env", metavar="PATH", help="environment with bin/python (default: that of windlass)")
    parser.add_argument("--import", dest="module", default="torch", metavar="MODULE", help="what is imported")
    parser.add_argument("--nodes", metavar="N,N…", help="sizes (default 1,2,4; with --push 2,4,8)")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="ranks on each node (default 1)")
    pushed = ", ".join(LOOPBACK_CASES)
    text = f"of {', '.join(CASES)}; with --push of {pushed} (default: all)"
    parser.add_argument("--cases", metavar="CASE,…", help=text)
    parser.add_argument("--repeat", type=int, default=5, metavar="K", help="rounds (default 5)")
    parser.add_argument("--warm-up", type=int, default=1, metavar="K", help="rounds before, discarded (default 1)")
    parser.add_argument(
        "--stages", action="store_true", help="show where the time of a miss went (records always hold it)"
    )
    parser.add_argument("--latency", type=float, default=0.0, metavar="MS", help="latency of each call")
    parser.add_argument("--calls", type=float, default=0.0, metavar="RATE", help="calls a second, all nodes together")
    parser.add_argument("--bandwidth", metavar="SIZE", help="bytes a second for all nodes together, as in 200M")
    parser.add_argument("--push", metavar="SIZE", help="push one file of this size to all nodes instead, as in 1G")
    parser.add_argument("--link", metavar="RATE", help="with --push: bits a second of each node's link, as in 400M")
    parser.add_argument("--work", metavar="DIR", help="folder for copies (default: a temporary one)")
    parser.add_argument("--simulate", action="store_true", help="predict sizes that cannot be measured; starts nothing")
    parser.add_argument(
        "--from",
        dest="record_from",
        metavar="RECORD",
        help="with --simulate: a record of --stages",
    )
    parser.add_argument("--page", metavar="FILE", help="with --simulate or --curves: renew this page")
    parser.add_argument("--plot", metavar="FILE", help="with --simulate or --curves: as SVG")
    parser.add_argument("--record", metavar="FILE", help="keep rows, machine and settings as a record")
    parser.add_argument("--json", action="store_true", help="rows of case, nodes, ranks, seconds, calls, bytes")
    start_curves.add_arguments(parser)


def main(args: argparse.Namespace) -> Result:
    if args.simulate:
        return _simulated(args.record_from, args.page, args.plot)
    if args.push or args.link:
        return _pushed(args)
    env = Path(args.env).absolute() if args.env else Path(sys.prefix)
    if not (env / "bin" / "python").exists():
        raise UsageError(f"--env {env} has no bin/python", hint="give a virtual or conda environment")
    if not args.module.replace(".", "").replace("_", "").isalnum():
        raise UsageError(f"--import {args.module} is not the name of a module", hint="e.g. --import torch")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise MachineError(
            "no usable /dev/fuse: the shared file system of the measurement cannot be made",
            hint="as root: modprobe fuse; in a container it needs the device",
        )
    if args.curves:
        return _curves(args, env)
    cases = _cases(args.cases, CASES)
    sizes = _sizes(args.nodes or "1,2,4")
    if args.repeat < 1 or args.ranks < 1 or args.warm_up < 0:
        raise UsageError(
            "--repeat and --ranks are 1 or more, --warm-up is 0 or more", hint="leave one out to have its default"
        )
    limits = Limits(
        latency_s=args.latency / 1000,
        calls_per_s=args.calls,
        bytes_per_s=float(parse_size(args.bandwidth, "--bandwidth")) if args.bandwidth else 0.0,
    )
    load = load_average()
    with work_folder(args.work) as work, _progress() as tell:
        setup = StartSetup(env=env, module=args.module, work=work, limits=limits, environ=current_environ())
        rows = measure(setup, cases, sizes, args.ranks, args.repeat, tell, warm_up=args.warm_up)
    shown = {"latency_ms": args.latency, "calls_per_s": args.calls, "bandwidth": args.bandwidth}
    return _result(args, rows, load, {"import": args.module, "limits": shown, "repeat": args.repeat})


def _curves(args: argparse.Namespace, env: Path) -> Result:
    with work_folder(args.work) as work, _progress() as tell:
        setup = StartSetup(env=env, module=args.module, work=work, limits=Limits(), environ=current_environ())
        return start_curves.run(args, setup, _sizes(args.nodes or "4"), tell)


def _pushed(args: argparse.Namespace) -> Result:
    if not args.push:
        raise UsageError("--link says how fast the links of a push are", hint="add --push 1G")
    size = parse_size(args.push, "--push")
    link = _bits(args.link) if args.link else None
    cases = _cases(args.cases, LOOPBACK_CASES if link is None else LINK_CASES)
    sizes = _sizes(args.nodes or "2,4,8")
    if size < 1 or min(sizes) < 2 or args.repeat < 1:
        raise UsageError("a push has a byte, two nodes and one round at least", hint="--push 1G --nodes 2,4,8")
    load = load_average()
    with work_folder(args.work) as work, _progress() as tell:
        rows = measure_push(PushSetup(work=work, size=size, link_bits_per_s=link), cases, sizes, args.repeat, tell)
    return _result(args, rows, load, {"bytes": size, "link_bits_per_s": link, "repeat": args.repeat})


def _result(
    args: argparse.Namespace, rows: list[StartResult] | list[PushResult], load: float, options: dict[str, object]
) -> Result:
    machine = {"cpus": os.cpu_count(), "load_before": load, "load_after": load_average()}
    record = start_record(
        [asdict(row) for row in rows],
        options={name: value for name, value in options.items() if value is not None},
        machine=machine,
        command=("windlass", "bench", *args.words),
        windlass=windlass.__version__,
        commit=checkout_commit(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    if args.record:
        write_record(Path(args.record), record)
    lines = [table_text(record), *(f"not measured: {line}" for line in record.skipped)]
    if args.stages:
        lines += [
            "\n" + costs_text(f"{row.case} on {counted(row.nodes, 'node')}", row.costs)
            for row in rows
            if isinstance(row, StartResult) and row.costs
        ]
    return Result(text="\n".join(lines), data=rows)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    progress = Progress(sys.stderr)
    progress.what = "windlass"
    try:
        yield progress.show
    finally:
        progress.clear()


def _bits(text: str) -> int:
    """Bits a second of `400M`; links are counted in thousands."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:bit(?:/s)?)?", text.strip(), re.IGNORECASE)
    bits = int(float(match.group(1)) * 1000 ** " KMG".index(match.group(2).upper() or " ")) if match else 0
    if bits < 1_000_000:
        raise UsageError(f"--link {text!r} is not a rate of a megabit a second or more", hint="write 400M or 1G")
    return bits


def _cases(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    cases = tuple(case.strip() for case in text.split(",") if case.strip()) if text else known
    for case in cases:
        if case not in known:
            raise unknown_name("case", case, known)
    return cases


def _simulated(source: str | None, page: str | None, plot: str | None) -> Result:
    """Without a record of the cache's stages there is nothing to predict its ways from: then only the others."""
    if page and not source:
        raise UsageError("--page is made from a record", hint="add --from results/start/stages-….json")
    costs = stage_costs(read_record(source), FANOUT) if source else None
    sizes = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    ways = WAYS if costs else tuple(way for way in WAYS if not way.startswith("windlass"))
    series = [predict(way, sizes, 12, costs=costs) for way in ways]
    if plot:
        Path(plot).write_text(plot_svg(series))
    if page and source and costs:
        Path(page).write_text(renewed(Path(page).read_text(), source, costs, series))
    points = [point for way in series for point in way]
    lines = ["simulated, not measured: seconds until the last of nodes x 12 ranks has imported (10 %, middle, 90 %)"]
    lines += [f"{p.way:<15} {p.nodes:>6} nodes {p.low:>9.1f} {p.middle:>9.1f} {p.high:>9.1f}" for p in points]
    if costs is None:
        lines.append("the cache: give --from RECORD, a record of `windlass bench start --nodes 1,8 --stages`")
    return Result(text="\n".join(lines), data=points)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--nodes {text!r}", hint="write 1,2,4") from None
    if not sizes or min(sizes) < 1 or max(sizes) > 200:
        raise UsageError(f"--nodes {text!r}", hint="numbers from 1 to 200")
    return sizes
