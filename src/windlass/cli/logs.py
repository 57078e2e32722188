"""Output of one rank or of several, from a run folder; or where each rank was."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.result import Result
from windlass.errors import UsageError
from windlass.failure.ends import read_seats
from windlass.failure.rank_logs import rank_logs
from windlass.run.folder import PLAN_FILE, open_folder, read_plan
from windlass.run.output import show_ranks
from windlass.settings import current_environ, read_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN_DIR", help="a run folder (default: list them)")
    parser.add_argument("--rank", default="0", metavar="RANKS", help="0 (default), 0,3-5 or all")
    parser.add_argument("--where", action="store_true", help="host, CPUs and device that each rank really got")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    if args.run is None:
        return _list(read_settings(current_environ()).runs_dir)
    folder = open_folder(args.run)
    plan = read_plan(folder.path)
    if args.where:
        return _where(folder.part("where"))
    ranks = show_ranks(args.rank, plan.world_size, flag="--rank")
    single = ranks is not None and len(ranks) == 1
    lines = [{"rank": rank, "text": text} for rank, text in rank_logs(plan, folder.path).lines(ranks)]
    text = "\n".join(str(line["text"]) if single else f"[{line['rank']}] {line['text']}" for line in lines)
    return Result(text=text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), data=lines)


def _list(runs: Path) -> Result:
    folders = sorted(path.parent for path in runs.expanduser().glob(f"*/{PLAN_FILE}"))
    if not folders:
        raise UsageError(f"no runs in {runs}", hint="give a run folder, or set WINDLASS_RUNS")
    rows = []
    for path in folders:
        record = open_folder(path).result()
        state = "no result (running, or killed)" if record is None else f"{record.outcome}, code {record.exit_code}"
        rows.append({"run": str(path), "state": state})
    return Result(text="\n".join(f"{row['run']}  {row['state']}" for row in rows), data=rows)


def _where(folder: Path) -> Result:
    seats = sorted(read_seats(folder))
    rows = [{"rank": s.rank, "host": s.host, "cpus": s.cpus, "device": s.device, "pid": s.pid} for s in seats]
    text = "\n".join(f"rank {s.rank:>4}  {s.host:<16} cpus {s.cpus:<16} device {s.device or '-'}" for s in seats)
    return Result(text=text, data=rows)
