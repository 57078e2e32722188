"""Push files of a shared file system to storage of the nodes, through a tree of nodes: one of them reads.

A folder is copied as it is. A tar archive (also .gz, .zst, .xz) is unpacked while it arrives with --extract. A squashfs
image is copied, and with --extract also mounted beside it until `windlass cache stop`. A SIF image is copied. Each copy
gets its name when it is complete; what was there before is replaced in one step.
"""

from __future__ import annotations

import argparse
import sys

from windlass.base.notation.counts import counted, size_text
from windlass.base.notation.style import width_of
from windlass.base.settings import current_environ
from windlass.cli.option_groups import PLACE, add_request_options
from windlass.cli.options import request_from
from windlass.cli.show import Result, say
from windlass.plan.show import plan_text
from windlass.run.progress import Progress
from windlass.run.stage.push import Staging, plan_staging, stage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser, (*PLACE, "--run-dir"))
    parser.usage = f"{parser.prog} SRC [SRC…] --to DIR [--extract] [--shard] [options]"
    parser.add_argument("sources", nargs="+", metavar="SRC", help="folders, archives, images")
    parser.add_argument("--to", required=True, metavar="DIR", help="folder on each node; ${NAME} is expanded there")
    parser.add_argument("--extract", action="store_true", help="unpack archives, mount squashfs images")
    parser.add_argument("--shard", action="store_true", help="each node gets a part of the files, not all")
    parser.add_argument(
        "--one-reader", action="store_true", help="only the first node reads SRC, which may be local to that node"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan, copy nothing")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    args.kind, args.command, args.name = "none", [], "stage"
    staging = Staging(
        sources=tuple(args.sources), to=args.to, extract=args.extract, shard=args.shard, one_reader=args.one_reader
    )
    if args.dry_run:
        plan = plan_staging(staging, request_from(args, environ), environ)
        return Result(text=plan_text(plan, columns=width_of(sys.stdout, environ)), data=plan)
    progress = Progress(sys.stderr, log_every_s=0.0)
    progress.what = "windlass"
    every_s = 1.0 if sys.stderr.isatty() else 60.0
    try:
        done = stage(staging, request_from(args, environ), environ, show=progress.show, every_s=every_s)
    finally:
        progress.clear()
    text = f"staged to {', '.join(done.places)} on {counted(done.plan.nodes, 'node')} in {done.seconds:.1f} s"
    if done.bytes_per_node:
        rate = done.bytes_per_node / max(done.seconds, 1e-3)
        text += f" ({size_text(done.bytes_per_node)} a node, {size_text(rate)}/s)"
    for warning in done.warnings:
        say(f"windlass: warning: {warning}, including the staged files")
    if done.mounted:
        text += f"\nmounted until: windlass cache stop {done.folder.path}"
    data = {"to": args.to, "nodes": done.plan.nodes, "seconds": round(done.seconds, 3)}
    data |= {"places": done.places, "run_dir": str(done.folder.path), "staged": done.nodes, "mounted": done.mounted}
    return Result(text=text, data=data)
