"""Check this machine, or every node of this allocation at once, before a run: devices, network, limits, room, clocks,
the environment of the ranks, a short all-reduce. Says what is wrong, on which nodes, and what to do about it.

A script and its options may follow, as for `windlass run`: then they are checked too, and not run."""

from __future__ import annotations

import argparse

import msgspec

from windlass.base.notation.counts import counted
from windlass.base.settings import current_environ
from windlass.cli.option_groups import OWN_RANKS, add_request_options
from windlass.cli.options import join_values, request_from, split_command
from windlass.cli.show import Result, tell
from windlass.diagnose.doctor.examine import examine
from windlass.diagnose.doctor.health import Health, Level
from windlass.model.finding import Severity, finding_lines, worst_first

_FAILED = 1
PROGRESS = "checking"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser, (*OWN_RANKS, "--master-port", "--run-dir"))
    parser.usage = f"{parser.prog} [--quick | --full] [options] [SCRIPT.py [ARGS…]]"
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--quick", action="store_true", help="checks that take seconds: no torch, no collectives")
    level.add_argument(
        "--full", action="store_true", help="checks that take minutes: find the slow node, link or device by bisection"
    )
    parser.add_argument("--all", action="store_true", help="also show the checks that do not apply here")
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    options, kind, command = split_command(parser, argv)
    args = parser.parse_args(join_values(options))
    args.kind, args.command = kind if command else "none", command
    return args


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    level: Level = "quick" if args.quick else "full" if args.full else "default"
    health = examine(request_from(args, environ), environ, level, tell)
    text = "\n".join(health_lines(health, everything=args.all))
    return Result(text=text, data=health, exit_code=_FAILED if health.severity == "error" else 0)


def health_lines(health: Health, *, everything: bool = False) -> list[str]:
    """The worst findings first, then the bad nodes, then a summary. `everything` includes the skipped checks."""
    shown = [one for one in worst_first(health.findings) if everything or one.severity != "skipped"]
    if health.nodes == 1:
        shown = [msgspec.structs.replace(one, subject="") for one in shown]
    lines = finding_lines(shown)
    lines += [f"{host} should not be used: {reason}" for host, reason in health.bad_nodes.items()]
    lines.append(_summary(health, everything=everything))
    if health.outside:
        lines.append(f"outside of a job on {health.site}: get an allocation to check its nodes, ranks and network")
    return lines


def _summary(health: Health, *, everything: bool) -> str:
    def kinds(severity: Severity) -> int:
        return len({finding.kind for finding in health.findings if finding.severity == severity})

    skipped = 0 if everything else kinds("skipped")
    left = f"; {counted(skipped, 'check')} not applicable here" if skipped else ""
    where = counted(health.nodes, "node")
    if health.severity == "error":
        return f"{counted(kinds('error'), 'check')} failed on {where} in {health.seconds:.1f} s{left}"
    if health.severity == "warning":
        return f"{where}: nothing failed, {counted(kinds('warning'), 'warning')}, {health.seconds:.1f} s{left}"
    return f"{where}: no problem found ({counted(kinds('ok'), 'check')}, {health.seconds:.1f} s){left}"
