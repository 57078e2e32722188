"""Shared code of the measuring sub-commands: rank options, the start of parts, the output of a result."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.base.settings import current_environ, read_settings
from windlass.bench import report
from windlass.bench.cases import measuring_case, table_text
from windlass.bench.options import add_options, asked
from windlass.bench.record import BenchRecord, write_record
from windlass.bench.reference import load_references
from windlass.bench.runner import Bench, RankError
from windlass.bench.verdict import judge
from windlass.cli.option_groups import OWN_RANKS, add_request_options
from windlass.cli.options import request_from
from windlass.cli.show import Result, say
from windlass.model.finding import finding_lines
from windlass.model.secrets import mask_argv
from windlass.run.folder import folder_path

RUN_OPTIONS = ("device",)
"""Options of a case that belong to every run. They are declared here."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every case: where and how the ranks run, and where the record is written."""
    add_request_options(parser, (*OWN_RANKS, "--run-dir"))
    parser.add_argument("--allow-login", action="store_true", help="run although this looks like a login node")
    parser.add_argument("--device", choices=("cuda", "xpu", "cpu"), help="default: an accelerator if there is one")
    parser.add_argument("--output", metavar="FILE", help="write the record to this file too")
    parser.add_argument("--json", action="store_true", help="print the record instead of the table")


def open_bench(case: str, args: argparse.Namespace, asked: dict[str, Any]) -> Bench:
    """A benchmark that is ready to run its parts, with the options of its case."""
    environ = current_environ()
    args.kind, args.command = "command", ["true"]
    request = request_from(args, environ)
    return Bench(
        case=case,
        request=request,
        environ=environ,
        allow_login=args.allow_login,
        folder=folder_path(args.run_dir, read_settings(environ).runs_dir, f"bench-{case}"),
        exact_folder=args.run_dir is not None,
        command=mask_argv(tuple(args.words)),
        asked=asked,
    )


def finish(bench: Bench, record: BenchRecord, args: argparse.Namespace) -> Result:
    """Write the record and show it.

    Raises `RankError` if nothing was measured. A partial record is kept and marked as partial.
    """
    path = bench.folder / "record.json"
    if record.rows or record.skipped:
        write_record(path, record)
        if args.output:
            write_record(Path(args.output), record)
    elif not bench.interrupted:
        detail = "; ".join(bench.failed) or "the ranks sent no result"
        hint = f"see `windlass logs {bench.folder}`"
        raise RankError(f"nothing was measured: {detail}", hint=hint, code=bench.exit_code or 1)
    references = load_references(read_settings(current_environ()).config_dir)
    lines = [table_text(record), *report.end_lines(record, finding_lines(judge(record, references)))]
    if record.rows or record.skipped:
        say(f"windlass: record {path}")
    wrong = any(row.wrong for row in record.rows)
    code = bench.exit_code or (1 if wrong else 0)
    return Result(text="\n".join(line for line in lines if line), data=record, exit_code=code)


class MeasuringCommand:
    """The interface of a command's module, for a case."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._case = measuring_case(name)
        self.__doc__ = self._case.help

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_options(parser, self._case.options, without=RUN_OPTIONS)
        words = [action.metavar for action in parser._actions if not action.option_strings and action.dest != "command"]
        parser.usage = " ".join([parser.prog, *map(str, words), "[options]"])

    def main(self, args: argparse.Namespace) -> Result:
        bench = open_bench(self._name, args, asked(args, self._case.options))
        return finish(bench, self._case.run(bench), args)
