"""Measure what this machine does, and compare it: collectives, training steps, input, scaling."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any

from windlass.cli.benches.launching import add_run_options
from windlass.cli.main import take_shared
from windlass.cli.options import join_values
from windlass.cli.show import Result
from windlass.cli.typed_words import refuse_removed
from windlass.errors import unknown_name

# One line of help for each sub-command.
SUBS = {
    "collectives": "bandwidth of all_reduce and other collectives, in the format of nccl-tests",
    "matmul": "achievable peak rate of this device, for each data type",
    "ddp": "cost of DDP: one device, one node, all nodes",
    "llm": "tokens/s, TFLOP/s and utilisation of a Llama-style training step",
    "io": "input rate of a file system: files, tar, squashfs",
    "scale": "one case at several sizes: speed-up and efficiency",
    "report": "show records: text, JSON, an HTML page with plots",
    "compare": "compare two records case by case, with the noise",
    "reference": "published figures, and whether a record reaches them",
}
# These sub-commands start no ranks in this allocation and share no options.
_ALONE = ("report", "compare", "reference")
# These sub-commands have a separate module. All others are cases that start ranks in the same way.
_MODULES = ("scale", *_ALONE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all cases that start ranks. Each case has additional options, see `parse`."""
    add_run_options(parser)
    parser.usage = f"{parser.prog} WHAT [options]"
    width = max(len(name) for name in SUBS)
    lines = [f"  {name:<{width}}  {text}" for name, text in SUBS.items()]
    parser.epilog = "\n".join(["what:", *lines, "", f"`{parser.prog} WHAT --help` shows the options of each."])


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse the sub-command's command line."""
    if not argv or argv[0] in {"-h", "--help", "--help-all"}:
        if argv:
            parser.parse_args(argv)
        parser.print_help(sys.stderr)
        sys.exit(2)
    if argv[0] not in SUBS:
        refuse_removed("bench", argv[:1])
        raise unknown_name("benchmark", argv[0], SUBS)
    module, sub = _sub(parser, argv[0])
    others = set(parser._option_string_actions) - {"--json"} if argv[0] in _ALONE else set()
    others |= set(sub._option_string_actions)  # `scale --nodes 1,2,4` is a separate option
    given, words = take_shared(parser, join_values(argv[1:]), without=others)
    args = module.parse(sub, words, given) if hasattr(module, "parse") else sub.parse_args(words, given)
    args.sub, args.words = module, tuple(argv)
    return args


def sub_parser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """The options of a sub-command, for completion."""
    return _sub(parser, name)[1]


def _sub(parser: argparse.ArgumentParser, name: str) -> tuple[Any, argparse.ArgumentParser]:
    module: Any
    if name in _MODULES:
        module = import_module(f"windlass.cli.benches.{name}")
    else:
        module = import_module("windlass.cli.benches.launching").MeasuringCommand(name)
    sub = type(parser)(prog=f"{parser.prog} {name}", description=module.__doc__, formatter_class=parser.formatter_class)
    module.add_arguments(sub)
    shared = "" if name in _ALONE else f" and the options of `{parser.prog} --help-all`"
    sub.epilog = f"Also has --json{shared}."
    return module, sub


def main(args: argparse.Namespace) -> Result:
    result: Result = args.sub.main(args)
    return result
