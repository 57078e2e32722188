"""Explain logs: which line is the cause, which only follow from it, which are harmless, and what to do.

Files of any launcher, torchrun or the scheduler; or run folders of windlass. Labels as in `3: …` and `[rank3]: …`, and
names as in rank-3.log, tell the rank."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from windlass.cli.result import Result
from windlass.doctor.explain_log import explain_files, report_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="log files or run folders")
    parser.add_argument("--all", action="store_true", help="explain the harmless lines too")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    shown = sys.stderr.isatty()

    def tell(text: str) -> None:
        if shown:
            print(f"\rwindlass: {text}", end="", file=sys.stderr, flush=True)

    report = explain_files([Path(name).expanduser() for name in args.files], tell)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return Result(text="\n".join(report_lines(report, everything=args.all)), data=report)
