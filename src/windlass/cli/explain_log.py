"""Explain logs: which line is the cause, which only follow from it, which are harmless, and what to do.

Files of any launcher, torchrun or the scheduler; or run folders of windlass. Labels as in `3: …` and `[rank3]: …`, and
names as in rank-3.log, tell the rank."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.base.notation.counts import counted
from windlass.base.settings import current_environ, read_settings
from windlass.cli.show import Result, tell
from windlass.diagnose.doctor.explain_log import amount_text, explain_files
from windlass.diagnose.doctor.log_findings import LogReport
from windlass.model.finding import INDENT, finding_lines
from windlass.run.supervise.runs import find_run

PROGRESS = "reading the logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="log files or run folders (default: the last run); - is the standard input",
    )
    parser.add_argument("--all", action="store_true", help="also explain the harmless lines")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    files = args.files or [find_run(None, read_settings(current_environ()).runs_dir).path]
    names = ["/dev/stdin" if name == "-" else str(name) for name in files]
    report = explain_files([Path(name).expanduser() for name in names], tell)
    return Result(text="\n".join(report_lines(report, everything=args.all)), data=report)


def report_lines(report: LogReport, *, everything: bool = False) -> list[str]:
    """The verdict, then each kind of line with its meaning and advice. Harmless lines only with `everything`."""
    lines = [report.verdict, ""]
    for one in report.findings:
        if one.severity != "ok" or everything:
            lines += [*finding_lines([one]), f"{INDENT}{one.facts['line']}"]
            lines.append(f"{INDENT}{one.facts['where']} ({counted(one.facts['count'], 'line')})")
    quiet = [] if everything else [one for one in report.findings if one.severity == "ok"]
    if quiet:
        total = sum(one.facts["count"] for one in quiet)
        lines.append(f"harmless: {counted(total, 'line')} ({', '.join(one.kind for one in quiet)}); --all shows them")
    if report.unmatched:
        lines.append(
            f"not matched: {counted(report.unmatched, 'line')}; there are too many different errors or short lines"
        )
    ranks = f", {counted(report.ranks, 'rank')}" if report.ranks else ""
    return [*lines, f"read {amount_text(report.files, report.lines)}{ranks}"]
