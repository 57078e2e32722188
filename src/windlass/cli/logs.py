"""Output of one rank or of several, from a run folder; or where each rank was. Without a folder: of the last run."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from windlass.backends.launchers import get_launcher
from windlass.base.notation.style import table_lines
from windlass.base.settings import current_environ, read_settings
from windlass.cli.show import Result
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.run.failure.ends import read_seats
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.failure.verdict import attempt_folders
from windlass.run.folder import PLAN_FILE, RESULT_FILE, RunFolder, read_plan
from windlass.run.output import OutputView, Tail, show_ranks
from windlass.run.supervise.runs import RunState, find_run, state_of

_LOOK_S = 0.2
_ASK_S = 5.0
"""How often the state of a run that is followed is asked for, which may mean the scheduler."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN_DIR", help="a run folder or its name (default: the last run)")
    parser.add_argument("--rank", default="0", metavar="RANKS", help="0 (default), 0,3-5 or all")
    parser.add_argument("--attempt", type=int, metavar="N", help="of the N-th start, for a run that was started again")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    parser.add_argument(
        "--where", action="store_true", help="host, CPUs, device and process id that each rank really got"
    )
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    folder = find_run(args.run, read_settings(environ).runs_dir)
    if args.follow and (args.json or args.where or args.attempt is not None):
        raise UsageError("--follow shows lines as they come", hint="leave --json, --where and --attempt out")
    start = folder.path if args.attempt is None else _attempt(folder, args.attempt)
    plan = read_plan(start if (start / PLAN_FILE).exists() else folder.path)
    if args.where:
        return _where(start / "where")
    ranks = show_ranks(args.rank, plan.world_size, flag="--rank")
    if args.follow:
        return _follow(folder, plan, ranks, environ)
    single = ranks is not None and len(ranks) == 1
    lines = [{"rank": rank, "text": text} for rank, text in rank_logs(plan, start).lines(ranks)]
    text = "\n".join(str(line["text"]) if single else f"[{line['rank']}] {line['text']}" for line in lines)
    if not lines and start == folder.path and not args.json:
        text = _waiting(state_of(folder, environ)) or ""
    return Result(text=text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), data=lines, foreign=True)


def _attempt(folder: RunFolder, number: int) -> Path:
    """Where the output of the N-th start is: in a folder of its own, but for the last one."""
    starts = [*attempt_folders(folder.path), folder.path]
    if not 1 <= number <= len(starts):
        raise UsageError(f"--attempt {number}: the run was started {len(starts)} times", hint="count from 1")
    return starts[number - 1]


def _waiting(state: RunState) -> str | None:
    """Why there is no output yet, where the scheduler knows."""
    if state.state != "waiting":
        return None
    return f"job {state.job_id} is waiting{state.why.removeprefix(f'job {state.job_id}')}"


def _follow(folder: RunFolder, plan: Plan, ranks: frozenset[int] | None, environ: Mapping[str, str]) -> Result:
    """Show lines until the run has ended, or somebody interrupts. A run that is started again is followed on."""
    single = ranks is not None and len(ranks) == 1
    view = OutputView(
        ranks,
        sys.stdout,
        sys.stderr,
        width=len(str(plan.world_size - 1)),
        labels=not single,
        foreign=True,
        environ=environ,
    )
    starts, said = -1, ""
    with contextlib.ExitStack() as stack:
        while True:
            state = state_of(folder, environ)
            waiting = _waiting(state) or said
            if waiting != said:
                view.note(waiting)
                said = waiting
            begun = len(attempt_folders(folder.path))
            if begun != starts:
                starts = begun
                stack.close()
                tail = Tail(read_plan(folder.path), folder.part("out"), get_launcher(plan.launcher), view)
                stack.callback(tail.close)
                stack.callback(tail.poll)  # what came last before the files were put aside
            ended = state.state not in {"running", "waiting"} and not state.may_live
            _show_for(0.0 if ended else _ASK_S, tail, folder)
            if ended:
                return Result()


def _show_for(seconds: float, tail: Tail, folder: RunFolder) -> None:
    """Show what comes, for so long or until a start of the run has left its record."""
    end = time.monotonic() + seconds
    before = _changed(folder)
    while True:
        tail.poll()
        if time.monotonic() >= end or _changed(folder) != before:
            return
        time.sleep(_LOOK_S)


def _changed(folder: RunFolder) -> float:
    try:
        return folder.part(RESULT_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _where(folder: Path) -> Result:
    seats = sorted(read_seats(folder))
    rows = [{"rank": s.rank, "host": s.host, "cpus": s.cpus, "device": s.device, "pid": s.pid} for s in seats]
    cells = [
        (f"rank {s.rank:>4}", s.host, f"cpus {s.cpus}", f"device {s.device or '-'}", f"pid {s.pid}") for s in seats
    ]
    return Result(text="\n".join(table_lines(cells)), data=rows)
