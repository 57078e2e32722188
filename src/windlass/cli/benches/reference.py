"""Published figures of a case, with their sources; with RECORD, what they say about it in words."""

from __future__ import annotations

import argparse

from windlass.base.settings import current_environ, read_settings
from windlass.bench.imported import Known
from windlass.bench.reading import read_record, showing
from windlass.bench.reference import CASES, load_references, reference_lines
from windlass.bench.verdict import judge
from windlass.cli.show import Result
from windlass.model.finding import finding_lines, worst_severity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("record", nargs="?", metavar="RECORD", help="a measurement to judge")
    parser.add_argument("--device-name", metavar="NAME", help="figures of this device, e.g. GH200")


def main(args: argparse.Namespace) -> Result:
    references = load_references(read_settings(current_environ()).config_dir)
    if args.record is None:
        lines = reference_lines(args.case, references, args.device_name)
        return Result(text="\n".join(lines), data=references)
    record = read_record(args.record, Known(device=args.device_name))
    with showing(args.record):
        verdicts = judge(record, references)
    lines = [record.title, *(finding_lines(verdicts) or ["no published figure matches"])]
    return Result(text="\n".join(lines), data=verdicts, exit_code=1 if worst_severity(verdicts) == "error" else 0)
