"""A case of `windlass bench` that starts ranks, as a command: its options are those of the case."""

from __future__ import annotations

import argparse

from windlass.bench.cases import measuring_case
from windlass.bench.options import add_options, asked
from windlass.cli.benches.launching import RUN_OPTIONS, add_run_options, finish, open_bench
from windlass.cli.result import Result


class MeasuringCommand:
    """What a module of a command offers, made for a case."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._case = measuring_case(name)
        self.__doc__ = self._case.help

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run_options(parser)
        add_options(parser.add_argument_group("what"), self._case.options, without=RUN_OPTIONS)
        words = [action.metavar for action in parser._actions if not action.option_strings and action.dest != "command"]
        parser.usage = " ".join([parser.prog, *map(str, words), "[options]"])

    def main(self, args: argparse.Namespace) -> Result:
        bench = open_bench(self._name, args, asked(args, self._case.options))
        return finish(bench, self._case.run(bench), args)
