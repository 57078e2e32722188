"""Explain logs: which line is the cause, which only follow from it, which are harmless, and what to do.

Files of any launcher, torchrun or the scheduler; or run folders of windlass. Labels as in `3: …` and `[rank3]: …`, and
names as in rank-3.log, tell the rank."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.result import Result
from windlass.cli.working import tell
from windlass.diagnose.doctor.explain_log import explain_files, report_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="log files or run folders")
    parser.add_argument("--all", action="store_true", help="explain the harmless lines too")
    parser.add_argument("--json", action="store_true")


def progress(args: argparse.Namespace) -> str | None:
    return "reading the logs"


def main(args: argparse.Namespace) -> Result:
    report = explain_files([Path(name).expanduser() for name in args.files], tell)
    return Result(text="\n".join(report_lines(report, everything=args.all)), data=report)
