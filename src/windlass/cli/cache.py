"""The cooperative cache by hand inside an allocation: start, status, stop; and the traces that runs have recorded.

windlass cache start --root PATH… [--nodes N]     an agent on every node, its view mounted; returns when all are up
windlass cache status [RUN_DIR] [--json]          each node and the total: hits, bytes and calls by origin, memory
windlass cache stop [RUN_DIR]                     away with it
windlass cache trace list|show|drop [ID]          what was recorded, for which environment
windlass cache trace record --root ENV -- CMD…    records what CMD reads of it, here and now, for later runs
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from windlass.base.notation.counts import counted, size_text
from windlass.base.settings import current_environ, read_settings
from windlass.cli.main import shared_text, take_shared
from windlass.cli.option_groups import PLACE, add_request_options
from windlass.cli.options import join_values, request_from
from windlass.cli.show import Result
from windlass.cli.trusting import asking_for_trust
from windlass.errors import UsageError
from windlass.plan.cache import VIEW_VARIABLE
from windlass.run.sidecars.cache_service import status_text, totals
from windlass.run.sidecars.detached import find_detached, start_detached, status_of, stop_detached
from windlass.run.sidecars.traces import drop_trace, list_traces, record_trace, show_trace

SUBS = ("start", "status", "stop", "trace")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all actions. `parse` adds those of each action."""
    parser.add_argument("--json", action="store_true")
    parser.usage = "windlass cache start|status|stop|trace …   (see below)"


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    action = argv[0] if argv else ""
    if action in {"-h", "--help", "--help-all"}:
        parser.parse_args(argv)
    if action not in SUBS:
        raise UsageError(f"windlass cache {action}".rstrip(), hint=f"give one of {', '.join(SUBS)}")
    if action == "trace" and argv[1:2] == ["record"]:
        return _parse_record(parser, argv)
    given, rest = take_shared(parser, join_values(argv[1:]))
    args = sub_parser(parser, action).parse_args(rest, given)
    args.action, args.kind, args.command = action, "none", []
    return args


def sub_parser(parser: argparse.ArgumentParser, action: str) -> argparse.ArgumentParser:
    """The options of one of the actions."""
    own = type(parser)(prog=f"{parser.prog} {action}")
    if action == "start":
        add_request_options(own, (*PLACE, "--cache-set", "--run-dir"))
        own.usage = f"{own.prog} --root PATH [--root PATH…] [options]"
        own.add_argument("--root", action="append", default=[], dest="cache", metavar="PATH", help="folder to show")
    elif action == "trace record":
        own.usage = f"{own.prog} --root PATH [--root PATH…] -- COMMAND…"
        own.add_argument(
            "--root", action="append", default=[], metavar="PATH", help="record which files of this folder are read"
        )
        own.add_argument(
            "--timeout", type=float, default=900.0, metavar="S", help="end the command after S seconds (900)"
        )
    elif action == "trace":
        own.add_argument("what", choices=("list", "show", "drop", "record"))
        own.add_argument("id", nargs="?", metavar="ID", help="of the list")
    else:
        own.add_argument("run", nargs="?", metavar="RUN_DIR", help="which cache, if several run")
    own.epilog = shared_text(parser)
    return own


def _parse_record(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    words = argv[2:]
    cut = words.index("--") if "--" in words else len(words)
    given, rest = take_shared(parser, words[:cut])
    args = sub_parser(parser, "trace record").parse_args(rest, given)
    args.action, args.what, args.kind, args.command = "trace", "record", "none", []
    args.recorded = words[cut + 1 :]
    return args


def progress(args: argparse.Namespace) -> str | None:
    return None if args.action == "trace" else f"{args.action} of the cache"


def main(args: argparse.Namespace) -> Result:
    settings = read_settings(current_environ())
    if args.action == "trace":
        return _trace(args, settings.traces_dir)
    if args.action == "start":
        return _start(args)
    environ = current_environ()
    held = asking_for_trust(lambda: find_detached(args.run, settings.runs_dir, settings.state_dir), environ)
    if args.action == "stop":
        stop_detached(held, environ)
        return Result(text=f"the cache of {held.folder.path} is stopped", data={"run_dir": str(held.folder.path)})
    if held.step.what != "cache":
        text = f"{held.folder.path} keeps staged images mounted, and no cache: `windlass cache stop` unmounts them"
        return Result(text=text, data={"run_dir": str(held.folder.path), "nodes": [], "total": {}})
    nodes = status_of(held, environ)
    return Result(text=status_text(nodes), data={"nodes": nodes, "total": totals(nodes)})


def _start(args: argparse.Namespace) -> Result:
    if not args.cache:
        raise UsageError("no folder was given", hint="windlass cache start --root /path/to/env")
    environ = current_environ()
    args.name = "cache"
    began = time.monotonic()
    held = start_detached(request_from(args, environ), environ)
    seconds = time.monotonic() - began
    plan, folder, view = held.plan, held.folder.path, held.view_word
    root = plan.cache.roots[0].path if plan.cache else ""
    text = "\n".join(
        (
            f"the cache is up on {counted(plan.nodes, 'node')} after {seconds:.1f} s",
            f"on each node {root} can be read as",
            f"  {view}{root}",
            f"inside a task:  export {VIEW_VARIABLE}={view}",
            f"look at it: windlass cache status   end it: windlass cache stop   (run folder {folder})",
        )
    )
    data = {"run_dir": str(folder), "view": view, "nodes": plan.nodes, "seconds": round(seconds, 3)}
    return Result(text=text, data=data)


def _record(args: argparse.Namespace, folder: Path) -> Result:
    if not args.root or not args.recorded:
        raise UsageError(
            "recording a trace needs a folder and a command",
            hint="windlass cache trace record --root ENV -- python -c 'import torch'",
        )
    if not args.timeout > 0:
        raise UsageError(f"--timeout {args.timeout:g}", hint="give seconds")
    roots = [os.path.abspath(Path(path).expanduser()) for path in args.root]  # noqa: PTH100  links stay
    found = record_trace(roots, args.recorded, current_environ(), folder, args.timeout)
    text = (
        f"{found.identity}: {counted(found.files, 'file')}, {size_text(found.file_bytes)}, "
        f"{counted(found.directories, 'folder')}; runs with --cache {' --cache '.join(args.root)} push it ahead"
    )
    return Result(text=text, data=found)


def _trace(args: argparse.Namespace, folder: Path) -> Result:
    if args.what == "record":
        return _record(args, folder)
    if args.what == "list":
        found = list_traces(folder)
        lines = [
            f"{t.identity}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(t.recorded_s))}  "
            f"{t.files:>6} files {size_text(t.file_bytes):>9} {t.directories:>5} folders  {' '.join(t.roots)}"
            for t in found
        ]
        return Result(text="\n".join(lines) or f"no traces in {folder}", data=found)
    if args.id is None:
        raise UsageError(f"windlass cache trace {args.what} needs an ID", hint="see `windlass cache trace list`")
    if args.what == "drop":
        drop_trace(folder, args.id)
        return Result(text=f"{args.id} is removed. The next run records a new trace", data={"dropped": args.id})
    trace = show_trace(folder, args.id)
    rows = [
        {"path": os.fsdecode(touch.path), "offset": touch.offset, "length": touch.length} for touch in trace.touches
    ]
    text = "\n".join(
        f"folder {row['path']}" if row["length"] == -1 else f"{row['length']:>10} at {row['offset']:>10}  {row['path']}"
        for row in rows
    )
    return Result(text=text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), data=rows)
