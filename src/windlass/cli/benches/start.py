"""Start-up: how long N nodes take to import a module, and what the shared file system sees of it, in several ways.

All nodes are on this machine: each has an address, a client of a shared file system, and a page cache of its own. The
shared file system counts calls and bytes, and can be made as slow as a real one. Cases take turns; medians with ranges.

With --push one file goes to all nodes instead, over links of a known rate (--link, needs root) or over loopback beside
a plain copy: by `windlass stage` with its several readers and with one, by Slurm's sbcast and by MPI_Bcast.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from windlass.bench.start.cases import CASES, Place, Row, load_average, measure
from windlass.bench.start.plot import plot_svg
from windlass.bench.start.push import LINK_CASES, LOOPBACK_CASES, PushPlace, PushRow, measure_push
from windlass.bench.start.shared import Limits
from windlass.bench.start.simulate import WAYS, predict
from windlass.bench.start.workfolder import work_folder
from windlass.cli.result import Result
from windlass.errors import MachineError, UsageError, unknown_name
from windlass.model.jsontext import to_json
from windlass.notation.sizes import parse_size
from windlass.settings import current_environ


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--env", metavar="PATH", help="environment with bin/python (default: that of windlass)")
    parser.add_argument("--import", dest="module", default="torch", metavar="MODULE", help="what is imported")
    parser.add_argument("--nodes", metavar="N,N…", help="sizes (default 1,2,4; with --push 2,4,8)")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="ranks on each node (default 1)")
    pushed = ", ".join(LOOPBACK_CASES)
    text = f"of {', '.join(CASES)}; with --push of {pushed} (default: all)"
    parser.add_argument("--cases", metavar="CASE,…", help=text)
    parser.add_argument("--repeat", type=int, default=5, metavar="K", help="rounds (default 5)")
    parser.add_argument("--latency", type=float, default=0.0, metavar="MS", help="latency of each call")
    parser.add_argument("--calls", type=float, default=0.0, metavar="RATE", help="calls a second, all nodes together")
    parser.add_argument("--bandwidth", metavar="SIZE", help="bytes a second for all nodes together, as in 200M")
    parser.add_argument("--push", metavar="SIZE", help="push one file of this size to all nodes instead, as in 1G")
    parser.add_argument("--link", metavar="RATE", help="with --push: bits a second of each node's link, as in 400M")
    parser.add_argument("--work", metavar="DIR", help="folder for copies (default: a temporary one)")
    parser.add_argument("--simulate", action="store_true", help="predict sizes that cannot be measured; starts nothing")
    parser.add_argument("--plot", metavar="FILE", help="with --simulate: the prediction as SVG")
    parser.add_argument("--record", metavar="FILE", help="keep rows, machine and settings as a record")
    parser.add_argument("--json", action="store_true", help="rows of case, nodes, ranks, seconds, calls, bytes")


def main(args: argparse.Namespace) -> Result:
    if args.simulate:
        return _simulated(args.plot)
    if args.push or args.link:
        return _pushed(args)
    env = Path(args.env).absolute() if args.env else Path(sys.prefix)
    if not (env / "bin" / "python").exists():
        raise UsageError(f"--env {env} has no bin/python", hint="give a virtual or conda environment")
    if not args.module.replace(".", "").replace("_", "").isalnum():
        raise UsageError(f"--import {args.module} is not the name of a module")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise MachineError("no usable /dev/fuse: the shared file system of the measurement cannot be made")
    cases = _cases(args.cases, CASES)
    sizes = _sizes(args.nodes or "1,2,4")
    if args.repeat < 1 or args.ranks < 1:
        raise UsageError("--repeat and --ranks are 1 or more")
    limits = Limits(
        latency_s=args.latency / 1000,
        calls_per_s=args.calls,
        bytes_per_s=float(parse_size(args.bandwidth, "--bandwidth")) if args.bandwidth else 0.0,
    )
    load = load_average()
    with work_folder(args.work) as work:
        place = Place(env=env, module=args.module, work=work, limits=limits, environ=current_environ())
        rows = measure(place, cases, sizes, args.ranks, args.repeat, _tell)
    if args.record:
        Path(args.record).write_bytes(to_json(_record(args, rows, load)))
    return Result(text=table(rows), data=rows)


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
    with work_folder(args.work) as work:
        rows = measure_push(PushPlace(work=work, size=size, link_bits_per_s=link), cases, sizes, args.repeat, _tell)
    if args.record:
        Path(args.record).write_bytes(to_json(_push_record(args, rows, load)))
    return Result(text=push_table(rows), data=rows)


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


def _push_record(args: argparse.Namespace, rows: list[PushRow], load: float) -> dict[str, object]:
    return {
        "version": 1,
        "what": "bench start --push",
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "formula": "median of the samples; seconds until the last node has all of it, daemons being up; "
        "link_share = bytes / seconds / link; hop_rate = bytes x (nodes - 1) / seconds; of_raw = hop_rate / raw's",
        "machine": {"cpus": os.cpu_count(), "load_before": load, "load_after": load_average()},
        "bytes": parse_size(args.push, "--push"),
        "link_bits_per_s": _bits(args.link) if args.link else None,
        "repeat": args.repeat,
        "rows": rows,
    }


def _simulated(plot: str | None) -> Result:
    sizes = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    series = [predict(way, sizes, 12) for way in WAYS]
    if plot:
        Path(plot).write_text(plot_svg(series))
    points = [point for way in series for point in way]
    lines = ["simulated, not measured: seconds until the last of nodes x 12 ranks has imported (10 %, middle, 90 %)"]
    lines += [f"{p.way:<15} {p.nodes:>6} nodes {p.low:>9.1f} {p.middle:>9.1f} {p.high:>9.1f}" for p in points]
    return Result(text="\n".join(lines), data=points)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--nodes {text!r}", hint="write 1,2,4") from None
    if not sizes or min(sizes) < 1 or max(sizes) > 200:
        raise UsageError(f"--nodes {text!r}", hint="numbers from 1 to 200")
    return sizes


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2Kwindlass: {text}", end="", file=sys.stderr, flush=True)
    else:
        print(f"windlass: {text}", file=sys.stderr, flush=True)


def _record(args: argparse.Namespace, rows: list[Row], load: float) -> dict[str, object]:
    return {
        "version": 1,
        "what": "bench start",
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "formula": "median of the samples; seconds from the first rank's start to the last one's end",
        "machine": {"cpus": os.cpu_count(), "load_before": load, "load_after": load_average()},
        "import": args.module,
        "limits": {"latency_ms": args.latency, "calls_per_s": args.calls, "bandwidth": args.bandwidth},
        "repeat": args.repeat,
        "rows": rows,
    }


def table(rows: list[Row]) -> str:
    """Rows for people."""
    head = ("case", "nodes", "ranks", "seconds", "range", "before", "shared calls", "by agents", "shared MB")
    body: list[tuple[str, ...]] = [head]
    for row in rows:
        if row.seconds is None:
            body.append((row.case, str(row.nodes), str(row.ranks), f"not measured: {row.not_measured}", *[""] * 5))
            continue
        body.append(
            (
                row.case,
                str(row.nodes),
                str(row.ranks),
                f"{row.seconds:.2f}",
                f"{row.low:.2f}-{row.high:.2f}",
                f"{row.ready_seconds:.2f}",
                f"{row.shared_calls:,}",
                f"{row.agent_calls:,}" if row.agent_calls else "",
                f"{(row.shared_bytes or 0) / 1e6:,.1f}",
            )
        )
    return _aligned(body)


def push_table(rows: list[PushRow]) -> str:
    """Rows of a push for people."""
    body: list[tuple[str, ...]] = [
        ("case", "nodes", "seconds", "range", "MB/s a node", "of the link", "MB/s all hops", "of raw", "CPU s")
    ]
    for row in rows:
        if row.seconds is None:
            body.append((row.case, str(row.nodes), f"not measured: {row.not_measured}", *[""] * 6))
            continue
        body.append(
            (
                row.case,
                str(row.nodes),
                f"{row.seconds:.2f}",
                f"{row.low:.2f}-{row.high:.2f}",
                f"{(row.rate or 0) / 1e6:,.1f}",
                f"{row.link_share:.2f}" if row.link_share is not None else "",
                f"{(row.hop_rate or 0) / 1e6:,.1f}",
                f"{row.of_raw:.2f}" if row.of_raw is not None else "",
                f"{row.cpu_seconds:.1f}" if row.cpu_seconds is not None else "",
            )
        )
    return _aligned(body)


def _aligned(body: list[tuple[str, ...]]) -> str:
    short = [[cell for cell in column if not cell.startswith("not measured")] for column in zip(*body, strict=True)]
    widths = [max(map(len, column)) for column in short]
    return "\n".join(_line(line, widths) for line in body)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *rest = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return "  ".join((first.strip().ljust(widths[0]), *rest)).rstrip()
