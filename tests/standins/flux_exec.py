"""`flux exec` of the Flux stand-in: a process on each of the instance's ranks, beside whatever runs there.

It asks no scheduler and binds nothing. As in the real one, output is held back in a block unless a terminal reads it or
`stdbuf -oL` is around it; TERM and INT are passed on; any other end of `flux exec` takes its processes with it.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys

import flux_state as flux
import tasks
from flux_options import Parser

_NO_ROUTE = 68


def run(argv: list[str]) -> int:
    parser = Parser(prog="flux-exec", usage="flux-exec [OPTIONS]...", allow_abbrev=False)
    parser.add_argument("-r", "--rank", default="all")
    parser.add_argument("-x", "--exclude", default="")
    parser.add_argument("-d", "--dir")
    parser.add_argument("-l", "--label-io", action="store_true")
    parser.add_argument("-n", "--noinput", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("command", nargs="...")
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        print("usage: flux-exec [OPTIONS]...", file=sys.stderr)
        return 1
    hosts = flux.nodes()
    chosen: list[list[int]] = []
    for text in (options.rank, options.exclude):
        ids = list(range(len(hosts))) if text == "all" else parse_idset(text)
        if ids is None:
            print(f"flux-exec: failed to decode idset '{text}': Invalid argument", file=sys.stderr)
            return 1
        wrong = [number for number in ids if number >= len(hosts)]
        if wrong:
            print(f"flux-exec: One or more invalid --ranks specified: {fold(wrong)}", file=sys.stderr)
            return 1
        chosen.append(ids)
    ranks = [number for number in chosen[0] if number not in chosen[1]]
    lost = [number for number in ranks if tasks.lost(hosts[number])]
    for number in lost:
        print(f"flux-exec: Error: rank {number}: {command[0]}: No route to host", file=sys.stderr, flush=True)
    planned = [task(number, hosts[number]) for number in ranks if number not in lost]
    return max(execute(planned, command, options.dir, options.label_io), _NO_ROUTE if lost else 0)


def task(number: int, host: str) -> tasks.Task:
    env = dict(os.environ)
    env["FLUX_URI"] = re.sub(r"local-\d+\Z", f"local-{number}", env["FLUX_URI"])
    return tasks.Task(number, 0, number, host, env)


def parse_idset(text: str) -> list[int] | None:
    """Ascending, as `0-3,7` or `[0-3,7]`; None for anything else: Flux refuses `3,1`."""
    ids: list[int] = []
    inner = re.sub(r"\A\[(.*)\]\Z", r"\1", text)
    for piece in inner.split(",") if inner else []:
        match = re.match(r"(\d+)(?:-(\d+))?\Z", piece)
        if not match:
            return None
        ids += range(int(match[1]), int(match[2] or match[1]) + 1)
    return ids if all(a < b for a, b in itertools.pairwise(ids)) else None


def fold(ids: list[int]) -> str:
    """`3`, `[0-1]`, `[0,2-3]`."""
    parts: list[list[int]] = []
    for number in sorted(ids):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    text = ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
    return text if text.isdecimal() else f"[{text}]"


def execute(planned: list[tasks.Task], command: list[str], cwd: str | None, labelled: bool) -> int:
    label = (lambda task: f"{task.rank}: ".encode()) if labelled else None
    tasks.hold_back_output(not (sys.stdout.isatty() or os.environ.get("_STDBUF_O") in {"L", "0"}))
    try:
        running = tasks.start(planned, command, label, cwd, end_lines=False)
    except OSError as problem:
        for one in planned:
            words = f"{command[0]}: error launching process: {problem.strerror}"
            print(f"flux-exec: Error: rank {one.rank}: {words}", file=sys.stderr)
        return 127
    tasks.wait(
        running,
        end_on_failure=False,
        grace_s=tasks.LONGEST_RUN_S,  # what ignores TERM goes on
        on_end=lambda _rank, _code: None,
        passed_on=(signal.SIGTERM, signal.SIGINT),
    )
    failed: dict[str, list[int]] = {}
    for rank, code in running.ended:
        if code:
            how = f"Exit {code}" if code > 0 else str(signal.strsignal(-code))
            failed.setdefault(how, []).append(rank)
    sys.stdout.flush()
    for how, ranks in failed.items():
        print(f"{fold(ranks)}: {how}", file=sys.stderr)
    return max((128 - code if code < 0 else code for _, code in running.ended), default=0)
