"""Output of one rank or of several, from a run folder; or where each rank was. Without a folder: of the last run."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from windlass.backends.launchers import get_launcher
from windlass.base.notation.counts import counted
from windlass.base.notation.style import table_lines
from windlass.base.settings import current_environ, read_settings
from windlass.cli.show import Result
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.run.failure.ends import read_seats
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.failure.verdict import attempt_folders, ending_lines, read_verdict
from windlass.run.folder import PLAN_FILE, RESULT_FILE, RunFolder, component_folder, read_plan
from windlass.run.output import OutputView, Tail, show_ranks
from windlass.run.supervise.runs import RunState, find_run, state_of

_LOOK_S = 0.2
_ASK_S = 5.0
"""Interval between queries for the state of a run that is followed. A query may call the scheduler."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN_DIR", help="a run folder or its name (default: the last run)")
    parser.add_argument("--rank", default="0", metavar="RANKS", help="0 (default), 0,3-5 or all")
    parser.add_argument("--attempt", type=int, metavar="N", help="output of the N-th start, if the run was restarted")
    parser.add_argument("--follow", "-f", action="store_true", help="print new lines until the run ends")
    parser.add_argument("--where", action="store_true", help="print host, CPUs, device and process id of each rank")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    folder = find_run(args.run, read_settings(environ).runs_dir)
    if args.follow and (args.json or args.where or args.attempt is not None):
        raise UsageError(
            "--follow shows lines as they come", hint="--follow cannot be combined with --json, --where or --attempt"
        )
    start = folder.path if args.attempt is None else _attempt(folder, args.attempt)
    plan = read_plan(start if (start / PLAN_FILE).exists() else folder.path)
    if args.where and not plan.parts:
        return _where(start / "where")
    size = max((part.world_size for part in plan.parts), default=plan.world_size)
    ranks = show_ranks(args.rank, size, flag="--rank")
    if args.follow:
        return _follow(folder, plan, ranks, environ)
    if args.json or args.where:
        if plan.parts:
            raise UsageError(f"{folder.path} has components", hint=f"name one: {folder.path.name}/{_first(plan)}")
        lines = rank_logs(plan, start).lines(ranks)
        return Result(data=[{"rank": rank, "text": text} for rank, text in lines], foreign=True)
    shown = False
    for part, path, view in _sources(plan, start, _view(plan, ranks, environ)):
        for rank, text in rank_logs(part, path).lines(ranks):  # a log may be larger than the memory
            view.line(rank, text)
            shown = True
    waiting = not shown and start == folder.path and _waiting(state_of(folder, environ))
    return Result(text=waiting or "", foreign=True)


def _first(plan: Plan) -> str:
    return plan.request.components[0].name


def _sources(plan: Plan, path: Path, view: OutputView) -> list[tuple[Plan, Path, OutputView]]:
    """The plan, the folder and the view of each run whose output belongs to this one: itself, or its components."""
    if not plan.parts:
        return [(plan, path, view)]
    return [
        (part, component_folder(path, one.name), view.of_component(one.name, part.world_size))
        for one, part in zip(plan.request.components, plan.parts, strict=True)
    ]


def _attempt(folder: RunFolder, number: int) -> Path:
    """Directory with the output of the N-th start. Each start has a separate one, except the last."""
    starts = [*attempt_folders(folder.path), folder.path]
    if not 1 <= number <= len(starts):
        raise UsageError(f"--attempt {number}: the run was started {counted(len(starts), 'time')}", hint="count from 1")
    return starts[number - 1]


def _waiting(state: RunState) -> str | None:
    """Why there is no output yet, if the scheduler reports it."""
    if state.state != "waiting":
        return None
    return f"job {state.job_id} is waiting{state.why.removeprefix(f'job {state.job_id}')}"


def _follow(folder: RunFolder, plan: Plan, ranks: frozenset[int] | None, environ: Mapping[str, str]) -> Result:
    """Show lines until the run has ended or the user interrupts. A restarted run is followed too."""
    view = _view(plan, ranks, environ)
    starts, said = -1, ""
    tails: dict[tuple[Path, int], Tail] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(_close, tails, frozenset())
        while True:
            state = state_of(folder, environ)
            waiting = _waiting(state) or said
            if waiting != said:
                view.note(waiting)
                said = waiting
            # Ranks that started again in place write into the same files. Other starts get new folders.
            sources = {(path, (path / "out").stat().st_ino): own for _, path, own in _sources(plan, folder.path, view)}
            _close(tails, frozenset(sources))
            begun = len(attempt_folders(folder.path))
            if begun != starts and starts >= 0:
                _tell(folder, attempt_folders(folder.path)[starts:], plan, view)
            starts = begun
            for (path, inode), own in sources.items():
                if (path, inode) not in tails:
                    made, launcher = read_plan(path), get_launcher(plan.launcher)
                    tails[path, inode] = Tail(made, path / "out", launcher, own, rank_logs(made, path).since)
            ended = state.state not in {"running", "waiting"} and not state.may_live
            _show_for(0.0 if ended else _ASK_S, list(tails.values()), folder)
            if ended:
                _close(tails, frozenset())
                _tell(folder, [folder.path], plan, view)
                return Result()


def _close(tails: dict[tuple[Path, int], Tail], kept: frozenset[tuple[Path, int]]) -> None:
    """Show the last output of the other files and close them. A start may have moved them."""
    for key in tails.keys() - kept:
        tail = tails.pop(key)
        tail.poll()
        tail.close()


def _tell(folder: RunFolder, starts: list[Path], plan: Plan, view: OutputView) -> None:
    """Print the lines about the end of these starts that the terminal of the run shows."""
    for start in starts:
        verdict, record = read_verdict(start), RunFolder(start).result()
        if verdict is not None and record is not None:
            supervised = plan.request.supervised
            for line in ending_lines(verdict, record, folder.path, shown=view.shows, supervised=supervised):
                view.note(line)


def _view(plan: Plan, ranks: frozenset[int] | None, environ: Mapping[str, str]) -> OutputView:
    """A view of these ranks on standard output, with labels unless there is only one rank."""
    single = ranks is not None and len(ranks) == 1
    width = len(str(plan.world_size - 1))
    return OutputView(ranks, sys.stdout, sys.stderr, width=width, labels=not single, foreign=True, environ=environ)


def _show_for(seconds: float, tails: list[Tail], folder: RunFolder) -> None:
    """Show new output for this time, or until a start of the run has written its record."""
    end = time.monotonic() + seconds
    before = _changed(folder)
    while True:
        for tail in tails:
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
