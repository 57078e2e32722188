"""Run a command beside the ranks, on a node of a running job: a second look with rocm-smi, py-spy, top."""

from __future__ import annotations

import argparse
import sys

from windlass.base.settings import current_environ, read_settings
from windlass.cli import terminal
from windlass.cli.show import Result
from windlass.cli.trusting import asking_for_trust
from windlass.errors import UsageError
from windlass.run.supervise.runs import find_run
from windlass.run.supervise.second_look import look

_TIMEOUT_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [RUN] [--node NODE | --rank R] [--timeout S] -- COMMAND [ARGS…]"
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run folder or its name (default: the last run)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--node", metavar="NODE", help="a node, by name or number (default: the first)")
    where.add_argument(
        "--rank", type=int, metavar="R", help="the node of this rank, whose process is $WINDLASS_RANK_PID"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_S,
        metavar="S",
        help="end the command after S seconds (default: 1 hour)",
    )


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    at = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:at])
    args.command = tuple(argv[at + 1 :])
    return args


def main(args: argparse.Namespace) -> Result:
    if not args.command:
        raise UsageError("nothing to run", hint="write the command after --, e.g. windlass exec RUN -- nvidia-smi")
    if not 0 < args.timeout < float("inf"):
        raise UsageError(f"--timeout {args.timeout:g}", hint="give seconds, more than 0")
    environ = current_environ()
    folder = find_run(args.run, read_settings(environ).runs_dir)
    try:
        where = {"node": args.node, "rank": args.rank, "timeout_s": args.timeout}
        code = asking_for_trust(lambda: look(folder, args.command, environ, **where, show=_show), environ)
    except BrokenPipeError:
        code = terminal.gone(sys.stdout)
    return Result(exit_code=code)


def _show(data: bytes, is_error: bool) -> None:
    stream = sys.stderr.buffer if is_error else sys.stdout.buffer
    stream.write(data)
    stream.flush()
