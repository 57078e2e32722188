"""What a run did, why it was slow, and what to try: one HTML page in the run folder, and its words here.

windlass report                           of the last run
windlass report RUN --against ONE_NODE    with the efficiency against another run
windlass report RUN --format jobreport    a table for a proposal"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from windlass.base.settings import current_environ, read_settings
from windlass.cli.show import Result
from windlass.diagnose.report.gather import RunReport, gather
from windlass.diagnose.report.page import jobreport_text, report_page, report_text
from windlass.errors import os_errors
from windlass.model.finding import finding_lines
from windlass.node.sys.atomic import replace_text
from windlass.run.supervise.runs import find_run

PAGE_FILE = "report.html"
PROGRESS = "reading the run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="folder or name of a run (default: the last one)")
    parser.add_argument("--against", metavar="RUN", help="another run with the same work per rank, e.g. on one node")
    parser.add_argument(
        "--format", choices=("html", "text", "jobreport"), default="html", help="html (default) also writes the page"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"path of the page (default: {PAGE_FILE} in the run folder, or the current folder if the run folder is "
        "not yours)",
    )
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    runs_dir = read_settings(environ).runs_dir
    folder = find_run(args.run, runs_dir)
    against = find_run(args.against, runs_dir) if args.against else None
    report = gather(folder, environ, against=against)
    if args.format == "jobreport":
        return Result(text=jobreport_text(report), data=report)
    text = report_text(report, finding_lines(report.findings))
    if args.format == "html" and not args.json:
        text += f"\n\npage: {_write(report, Path(args.output) if args.output else page_path(folder.path))}"
    return Result(text=text, data=report)


def page_path(folder: Path) -> Path:
    """The page's path in the run folder, or in the current directory if the run folder belongs to another user."""
    if folder.stat().st_uid == os.geteuid():
        return folder / PAGE_FILE
    return Path(f"{folder.name}-{PAGE_FILE}").absolute()


def _write(report: RunReport, path: Path) -> Path:
    with os_errors(f"write {path}", hint="--output FILE writes elsewhere"):
        replace_text(path, report_page(report))
    return path
