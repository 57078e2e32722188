"""Run a small job through windlass and bundle what the machine really did: topology, binding, transport.

Run it inside an allocation of two nodes (or on this machine), then send the bundle to the catalog's maintainers: it is
how an entry that was written from documentation becomes one that was seen to work."""

from __future__ import annotations

import argparse
import sys

from windlass import api
from windlass.base.settings import current_environ
from windlass.cli.option_groups import CONTAINER, PLACE, add_request_options
from windlass.cli.options import join_values, request_from
from windlass.cli.show import Result
from windlass.model.finding import finding_lines, worst_severity

_ENVIRONMENT = ("--python", "--env", "--module", "--activate", "--with")
PROGRESS = "running the self-test"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser, (*PLACE, "--ranks-per-node", *_ENVIRONMENT, *CONTAINER))
    parser.usage = f"{parser.prog} [options] [--bundle FILE]"
    parser.add_argument(
        "--bundle", metavar="FILE", help="path of the file (default: windlass-selftest-SITE-TIME.tar.gz)"
    )
    parser.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    return parser.parse_args(join_values(argv))


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    args.kind, args.command, args.name, args.comm_log = "none", [], "selftest", "0"
    view = api.terminal_view("none", sys.stdout, sys.stderr, environ)
    done = api.selftest(request_from(args, environ), environ=environ, view=view, bundle=args.bundle)
    hidden = "docs/howto/send-a-selftest.md lists what it contains."
    text = "\n".join([*finding_lines(done.findings), "", f"bundle: {done.bundle}", hidden])
    bad = done.record.exit_code or int(worst_severity(done.findings) == "error")
    return Result(text=text, data={"bundle": str(done.bundle), "findings": done.findings}, exit_code=bad)
