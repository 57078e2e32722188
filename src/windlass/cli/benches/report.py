"""Show records: as text, as JSON, or as one HTML page with plots. Output of nccl-tests and oneCCL is read too."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.base.settings import current_environ, read_settings
from windlass.bench import report
from windlass.bench.imported import Known
from windlass.bench.reading import read_record, showing
from windlass.bench.record import write_record
from windlass.bench.reference import load_references
from windlass.bench.report import page
from windlass.bench.verdict import judge
from windlass.cli.show import Result
from windlass.errors import UsageError, os_errors
from windlass.model.finding import finding_lines
from windlass.node.sys.atomic import replace_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "records",
        nargs="+",
        metavar="RECORD",
        help="record.json, its folder or run; output of nccl-tests, - for standard input",
    )
    parser.add_argument("--html", metavar="FILE", help="write one self-contained HTML page")
    parser.add_argument("--output", metavar="FILE", help="write the record to FILE, also for output of other programs")
    said = parser.add_argument_group("facts that are missing in the output of other programs")
    said.add_argument("--op", help="the collective, e.g. all_gather")
    said.add_argument("--ranks", type=int)
    said.add_argument("--nodes", type=int)
    said.add_argument("--device-name", metavar="NAME", help="as in GH200")


def write_page(path: str, text: str) -> None:
    with os_errors(f"write {path}", hint="choose another with --html"):
        replace_text(path, text, 0o644)


def main(args: argparse.Namespace) -> Result:
    references = load_references(read_settings(current_environ()).config_dir)
    known = Known(op=args.op, ranks=args.ranks, nodes=args.nodes, device=args.device_name)
    records = [read_record(path, known) for path in args.records]
    if args.output:
        if len(records) != 1:
            raise UsageError(
                f"--output takes one record, not {len(records)}", hint="give one record, or leave --output out"
            )
        write_record(Path(args.output), records[0])
    texts = []
    for path, record in zip(args.records, records, strict=True):
        with showing(path):
            texts.append(report.text(record, finding_lines(judge(record, references))))
    if args.html:
        with showing(" and ".join(args.records)):
            html = page(records, references)
        write_page(args.html, html)
    text = "\n\n".join(texts)
    if args.html and not args.json:
        text = f"page: {args.html}"
    return Result(text=text, data=records[0] if len(records) == 1 else records)
