"""Gather what somebody needs to help you into one archive, without secrets: versions, the site and how it was detected,
tools, relevant variables, your configuration, quick checks, and the plan, scripts and ends of logs of a run.

Look into it before you send it: your logs and your command line are in it, with secrets hidden as far as windlass knows
them."""

from __future__ import annotations

import argparse

from windlass.base.settings import current_environ
from windlass.cli.show import Result, tell
from windlass.diagnose.bugreport.gather import write_report

PROGRESS = "gathering"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run folder or its name (default: the last run)")
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="a .tar.gz or .zip (default: windlass-bugreport-TIME.tar.gz)"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=("logs", "doctor"),
        help="leave out the output of the run, or the quick checks",
    )
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    report = write_report(current_environ(), run=args.run, out=args.output, without=args.without, tell=tell)
    listing = "unzip -l" if report.path.suffix == ".zip" else "tar -tzf"
    text = f"{report.summary}\nwritten: {report.path}\ncheck its contents before you send it: {listing} {report.path}"
    data = {"path": str(report.path), "run": report.run, "files": report.files, "left_out": report.left_out}
    return Result(text=text, data=data)
