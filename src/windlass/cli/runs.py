"""History of runs on disk: list them, show one with all its attempts, resume, stop, trust, clean up."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import msgspec

from windlass import api
from windlass.base.notation.counts import local_time
from windlass.base.notation.shell import quote
from windlass.base.notation.style import table_lines
from windlass.base.settings import Settings, current_environ, read_settings
from windlass.cli.show import Result
from windlass.cli.trusting import asking_for_trust, can_ask, confirm_trust
from windlass.diagnose.watch.figures import ms_text
from windlass.errors import UsageError
from windlass.model.finding import finding_lines
from windlass.run.failure.ends import read_ledger
from windlass.run.failure.verdict import Verdict, attempt_folders, read_verdict
from windlass.run.folder import COMMAND_FILE, PLAN_FILE, RunFolder, is_run
from windlass.run.supervise.attempts import records
from windlass.run.supervise.parts import read_states
from windlass.run.supervise.runs import RunState, choose_cleanable, find_folders, find_run, state_of, stop_run

_DAY_S = 86400.0
_RUN = "run folder, or its name from `list`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(dest="action", required=True, metavar="list | show | resume | stop | trust | clean")
    listing = sub.add_parser("list", help="list all runs, their state and why they ended")
    listing.add_argument("--json", action="store_true")
    show = sub.add_parser("show", help="show one run: attempts with causes, snapshots, evidence")
    show.add_argument("run", nargs="?", metavar="RUN", help=f"{_RUN} (default: the last one)")
    show.add_argument("--json", action="store_true")
    resume = sub.add_parser("resume", help="continue from the last snapshot: here, in this allocation, or in a new job")
    resume.add_argument("run", nargs="?", metavar="RUN", help=f"{_RUN} (default: the last one)")
    resume.add_argument("--nodes", "-N", type=int, metavar="N", help="another number of nodes")
    resume.add_argument("--ranks-per-node", "-r", type=int, metavar="R", help="another number of ranks per node")
    resume.add_argument("--show", default="0", metavar="RANKS", help="ranks to show: 0 (default), 0,3-5, all, none")
    resume.add_argument("--quiet", "-q", action="store_true")
    stop = sub.add_parser("stop", help="ask the ranks to save and leave, and end the run")
    stop.add_argument("run", metavar="RUN", help=_RUN)
    trust = sub.add_parser("trust", help="show what another user's run folder or plan would run, and trust it")
    trust.add_argument("what", metavar="RUN|PLAN", help=f"{_RUN}, or a plan file")
    trust.add_argument("--yes", action="store_true", help="trust it without asking")
    clean = sub.add_parser("clean", help="remove the folders of finished runs")
    clean.add_argument("--older-than", default="0", metavar="DAYS", help="only runs without a change for DAYS days")
    clean.add_argument("--keep", type=int, default=0, metavar="N", help="keep the newest N")
    clean.add_argument("--failed", action="store_true", help="also runs that failed, were stopped or were killed")
    clean.add_argument("--yes", action="store_true", help="remove them (default: only list them)")
    clean.add_argument("--json", action="store_true")


def progress(args: argparse.Namespace) -> str | None:
    return None if args.action in {"resume", "trust"} else "asking for the state of runs"


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    settings = read_settings(environ)
    if args.action == "list":
        return _list(settings, environ)
    if args.action == "clean":
        return _clean(args, settings, environ)
    if args.action == "trust":
        return _trust(args, settings, environ)
    folder = find_run(args.run, settings.runs_dir)
    if args.action == "show":
        return _show(folder, environ)
    if args.action == "stop":
        return _stop(folder, environ)
    return _resume(args, folder, environ)


def _list(settings: Settings, environ: dict[str, str]) -> Result:
    states = [state_of(folder, environ) for folder in find_folders(settings.runs_dir)]
    none = f"no runs in {settings.runs_dir} (set WINDLASS_RUNS if they are elsewhere)"
    return Result(text="\n".join(table_lines([_row(state) for state in states], right=(2,))) or none, data=states)


def _row(state: RunState) -> tuple[str, ...]:
    step = f"step {state.step}" if state.step is not None else ""
    tries = f"{state.attempts} starts" if state.attempts > 1 else ""
    about = ", ".join(part for part in (state.why, *_pace(state), tries, step) if part)
    when = time.strftime("%m-%d %H:%M", time.localtime(state.changed))
    return state.state, when, state.shape, state.path, about


def _pace(state: RunState) -> list[str]:
    return [f"{state.steps:,} steps of {ms_text(state.step_ms)}"] if state.steps else []


def _show(folder: RunFolder, environ: dict[str, str]) -> Result:
    state = state_of(folder, environ)
    verdicts = [(path.name, read_verdict(path)) for path in (*attempt_folders(folder.path), folder.path)]
    ended = dict(records(folder))
    lines = [f"{state.path}: {state.state}" + (f" ({state.why})" if state.why else "")]
    lines += [f"  {text}" for text in _pace(state)]
    data = []
    for number, (name, verdict) in enumerate(verdicts):
        record = ended.get(name)
        where = folder.path if name == folder.path.name else folder.path / name
        lines += _attempt_lines(number, where, verdict, record.outcome if record else "")
        lines += [f"    {line}" for line in finding_lines(record.findings if record else ())]
        data.append({"attempt": number, "folder": str(where), "verdict": verdict, "record": record})
    components = read_states(folder.path, ended=state.state not in {"running", "waiting"} and not state.may_live)
    for one in components:
        why = f" ({one.why})" if one.why else ""
        lines.append(f"  component {one.name}: {one.state}{why}; {folder.path.name}/{one.name}")
    saved = [line for line in read_ledger(folder.path) if line.what == "saved"]
    if saved:
        lines.append(f"  newest snapshot: step {saved[-1].step} in {saved[-1].folder}, {_clock(saved[-1].at)}")
    return Result(
        text="\n".join(lines), data={"state": state, "attempts": data, "snapshots": saved, "components": components}
    )


def _attempt_lines(number: int, where: Path, verdict: Verdict | None, outcome: str) -> list[str]:
    if verdict is None:
        return [f"  start {number + 1}: {outcome or 'no result'}"]
    times = verdict.times
    span = f"{_clock(times.started)}, {times.ended - times.started:.0f} s"
    lines = [f"  start {number + 1} ({span}) on {verdict.hosts}: {verdict.cause.line()}"]
    if verdict.where:
        lines.append(f"    {verdict.where}")
    begin = f"from step {verdict.from_step}" if verdict.from_step is not None else "from the beginning"
    to = f", saved up to step {verdict.to_step}" if verdict.to_step is not None else ", nothing saved"
    lines.append(f"    {begin}{to}; then: {verdict.decision.action} ({verdict.decision.why})")
    if (where / "evidence").is_dir():
        lines.append(f"    evidence: {where}/evidence")
    return lines


def _clock(at: float) -> str:
    return local_time(at, "%Y-%m-%d %H:%M:%S")


def _resume(args: argparse.Namespace, folder: RunFolder, environ: dict[str, str]) -> Result:
    resumed = asking_for_trust(
        lambda: api.resume(
            folder,
            nodes=args.nodes,
            ranks_per_node=args.ranks_per_node,
            environ=environ,
            view=api.terminal_view(args.show, sys.stdout, sys.stderr, environ),
            quiet=args.quiet,
        ),
        environ,
        in_jobs=False,
    )
    if isinstance(resumed, api.Submission):
        return Result(text=str(resumed.job_id), data={"job_id": resumed.job_id})
    return Result(data=None, exit_code=resumed.exit_code)


def _stop(folder: RunFolder, environ: dict[str, str]) -> Result:
    job_id = asking_for_trust(lambda: stop_run(folder, environ), environ)
    return Result(text=f"stopped {folder.path}" if job_id is None else f"cancelled job {job_id}")


def _trust(args: argparse.Namespace, settings: Settings, environ: dict[str, str]) -> Result:
    given = Path(args.what).expanduser().absolute()
    if not given.exists() and len(Path(args.what).parts) == 1:
        given = settings.runs_dir.expanduser().absolute() / args.what
    path = given.parent if given.name == PLAN_FILE and is_run(given) else given
    if path.is_dir() and not any((path / name).exists() for name in (PLAN_FILE, COMMAND_FILE)):
        raise UsageError(f"{path} is not a run folder", hint="`windlass runs list` shows all runs")
    if not args.yes and not can_ask():
        raise UsageError("cannot ask for confirmation: this is not a terminal", hint="--yes trusts it without asking")
    if not confirm_trust(path, environ, ask=not args.yes):
        raise UsageError(f"{path} is not trusted", hint="commands that only read it still work")
    return Result(text=f"{path} is trusted")


def _clean(args: argparse.Namespace, settings: Settings, environ: dict[str, str]) -> Result:
    if not re.fullmatch(r"\d+(\.\d+)?", args.older_than) or args.keep < 0:
        raise UsageError(f"--older-than {args.older_than} --keep {args.keep}", hint="give days and a count, 0 or more")
    older_s = float(args.older_than) * _DAY_S
    chosen = choose_cleanable(settings.runs_dir, environ, older_s=older_s, keep=args.keep, failed=args.failed)
    lines = [f"{'removed' if args.yes else 'would remove'} {state.path} ({state.state})" for state in chosen.gone]
    lines += [f"kept {state.path}: it holds its snapshots" for state in chosen.kept]
    lines += [
        f"kept {s.path}: it is a link, or does not have your signature (windlass runs trust {quote(s.path)})"
        for s in chosen.foreign
    ]
    if args.yes:
        chosen.remove()
    elif chosen.gone:
        lines.append("nothing was removed. Add --yes to remove these folders")
    data = [msgspec.to_builtins(state) for state in chosen.gone]
    return Result(text="\n".join(lines) or "nothing to remove", data=data)
