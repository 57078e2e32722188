"""Nodes that failed and are left out of the next jobs: list them, forgive them."""

from __future__ import annotations

import argparse

from windlass.base.notation.counts import local_time
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.notation.style import table_lines
from windlass.base.settings import current_environ, read_settings
from windlass.cli.show import Result
from windlass.errors import UsageError
from windlass.run.bad_nodes import BadNode, avoided_nodes, forgive

PROGRESS = "reading"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", metavar="NAME", help="only nodes of this machine")
    parser.add_argument("--json", action="store_true")
    sub = parser.add_subparsers(dest="action", required=True, metavar="list | forgive HOSTS")
    sub.add_parser("list", help="list the avoided nodes, with the reason and the end")
    pardon = sub.add_parser("forgive", help="use these nodes again")
    pardon.add_argument("hosts", nargs="*", metavar="HOSTS", help="e.g. nid[0001-0004]")
    pardon.add_argument("--all", action="store_true", help="all of them")


def main(args: argparse.Namespace) -> Result:
    settings = read_settings(current_environ())
    if args.action == "list":
        nodes = [node for node in avoided_nodes(settings) if args.site in {None, node.site}]
        rows = [
            (node.host, node.site, f"until {_clock(node.until)}", _reason(node))
            for node in sorted(nodes, key=lambda node: (node.site, node.host))
        ]
        return Result(text="\n".join(table_lines(rows)) or "no node is avoided", data=nodes)
    if bool(args.hosts) == args.all:
        raise UsageError("nodes forgive: no hosts were given", hint="give hosts, e.g. nid[0001-0004], or --all")
    wanted = None if args.all else frozenset(host for text in args.hosts for host in expand_hostlist(text))
    gone = forgive(settings.state_dir, wanted, args.site)
    unknown = sorted((wanted or frozenset()) - {node.host for node in gone})
    if unknown:
        raise UsageError(
            f"{unknown[0]} is not on your list",
            hint="`windlass nodes list` shows your list, and that of your centre, which only the centre changes",
        )
    text = "\n".join(f"{node.host} ({node.site}) is used again" for node in gone)
    return Result(text=text or "no node is avoided", data=list(gone))


def _reason(node: BadNode) -> str:
    return node.reason + (f" ({node.times} times)" if node.times > 1 else "") + (" [centre]" if node.by else "")


def _clock(at: float) -> str:
    return local_time(at, "%Y-%m-%d %H:%M")
