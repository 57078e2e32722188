"""Compare two records, case by case. A difference that noise explains is called the same."""

from __future__ import annotations

import argparse

from windlass.bench import compare
from windlass.bench.reading import read_record, showing
from windlass.cli.show import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the record to compare with")
    parser.add_argument("b", metavar="B", help="the record to judge")
    parser.add_argument("--fail-if-slower", action="store_true", help="exit with code 1 if a case of B is slower")


def main(args: argparse.Namespace) -> Result:
    a, b = (read_record(path) for path in (args.a, args.b))
    names = (args.a, args.b)
    with showing(" and ".join(names)):
        found = compare.compare(a, b)
        slower = any(one.word == "slower" for one in found.differences)
        text = compare.text(a, b, names)
    return Result(text=text, data=found, exit_code=1 if slower and args.fail_if_slower else 0)
