"""Compare two saved plans (from `windlass plan --json` or a run folder)."""

from __future__ import annotations

import argparse

from windlass.cli.show import Result
from windlass.plan.explain import diff_lines
from windlass.run.folder import read_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A.json", help="a plan, or a run folder; - is the standard input")
    parser.add_argument("b", metavar="B.json")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    """Compare the plans. The exit code is 0 if they agree and 1 if they differ, as in diff."""
    lines = diff_lines(*(read_plan("/dev/stdin" if name == "-" else name) for name in (args.a, args.b)))
    return Result(text="\n".join(lines) or "the plans are equal", data=lines, exit_code=1 if lines else 0)
