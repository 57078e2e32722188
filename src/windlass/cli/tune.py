"""Search the settings that people are told to try by hand, inside one allocation, and keep what is really better.

Each trial is one run of the command (20 to 50 steps are enough) with other values. The default is tried first, and
beside the winner last; a gain below twice the spread of the trials is no verdict, and "leave it unset" is a valid one.
A trial that fails or hangs is a result. With --keep the winner goes into your overlay of the site: the next plan uses
it, and `explain` says why.

    windlass tune train.py --steps 30
    windlass tune --objective busbw --nodes 4
    windlass tune --space my-space.toml --repeats 5 train.py"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from windlass.base.notation.counts import counted
from windlass.base.settings import ConfigFolders, current_environ, read_settings
from windlass.bench.tune.overlay import write_overlay
from windlass.bench.tune.search import Measure, Search, SearchResult, Trial
from windlass.bench.tune.space import UNSET, Choice, TunedSetting, default_space, read_space
from windlass.bench.tune.trials import Objective, Trials
from windlass.cli.option_groups import OWN_RANKS, add_request_options
from windlass.cli.options import PLACEHOLDER_COMMAND, join_values, request_from, split_command
from windlass.cli.show import Result, say
from windlass.errors import UsageError
from windlass.model.jsontext import to_json
from windlass.model.plan import Plan
from windlass.run.adopt import fabric_of
from windlass.run.folder import make_folder
from windlass.run.planning import plan_to_run
from windlass.sites.catalog import site_names

RECORD_FILE = "tune.json"
_OWN = ("--objective", "--space", "--repeats", "--most-trials", "--timeout", "--run-dir")
_OWN_FLAGS = ("--keep", "--json")
PROGRESS = "trying settings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser, (*OWN_RANKS, "--run-dir"))
    tune = parser.add_argument_group("search")
    tune.add_argument(
        "--objective",
        choices=("step", "seconds", "busbw"),
        default="step",
        help="what to improve: step time (default), duration of the run, or all-reduce bandwidth",
    )
    tune.add_argument(
        "--space", metavar="FILE", help="TOML file of settings and values to try (default: chosen for the site)"
    )
    tune.add_argument("--repeats", type=int, default=3, metavar="N", help="trials of each candidate")
    tune.add_argument("--most-trials", type=int, default=60, metavar="N", help="maximum number of trials")
    tune.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="a trial that takes longer counts as failed"
    )
    tune.add_argument("--keep", action="store_true", help="write the best settings into your overlay of the site")
    tune.add_argument("--json", action="store_true")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    options, kind, command = split_command(parser, argv)
    args = parser.parse_args(join_values(options))
    args.kind, args.command = kind, command
    args.words = _without_own(options)
    args.as_typed = argv[len(options) :]
    return args


def _without_own(options: list[str]) -> list[str]:
    """The options of the trials: all except those of the search itself."""
    kept: list[str] = []
    skip = False
    for word in options:
        if skip:
            skip = False
        elif word in _OWN:
            skip = True
        elif word not in _OWN_FLAGS and not word.startswith(tuple(f"{name}=" for name in _OWN)):
            kept.append(word)
    return kept


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    objective: Objective = args.objective
    _refuse_impossible(args)
    if not args.command:
        args.kind, args.command = "command", [PLACEHOLDER_COMMAND]
    request = request_from(args, environ)
    plan = plan_to_run(request, environ).plan
    settings = read_settings(environ)
    space = read_space(Path(args.space)) if args.space else _default_space(plan)
    folder = make_folder(args.run_dir, settings.runs_dir, "tune", state_dir=settings.state_dir)
    trials = Trials(
        objective=objective,
        space=space,
        options=tuple(args.words),
        command=tuple(args.as_typed),
        folder=folder.path,
        environ=environ,
        timeout_s=args.timeout,
    )
    search = Search(
        space,
        default_choice(plan, space),
        _told(trials, args.most_trials),
        repeats=args.repeats,
        budget=args.most_trials,
    )
    with folder.used_by("tune"):
        try:
            verdict = search.run()
        finally:
            folder.write_bytes("trials.json", to_json(search.trials))
        folder.write_bytes(RECORD_FILE, to_json(verdict))
    lines = verdict_lines(verdict, objective)
    if verdict.winner and args.keep:
        lines += _keep(verdict, plan, space, settings.folders, objective)
    elif verdict.winner:
        lines.append(
            "--keep writes it into your overlay of the site, or set it with:  " + _flags(verdict.winner, space)
        )
    lines.append(f"trials: {folder.path}")
    return Result(text="\n".join(lines), data=verdict, exit_code=0 if verdict.default_value is not None else 1)


def _refuse_impossible(args: argparse.Namespace) -> None:
    if args.objective != "busbw" and not args.command:
        raise UsageError("nothing to run", hint="add the script whose steps are timed, or --objective busbw")
    if args.objective == "busbw" and args.command:
        raise UsageError("--objective busbw runs its own benchmark", hint="leave the script out")
    for flag, value, least in (
        ("--repeats", args.repeats, 2),
        ("--most-trials", args.most_trials, 4 * max(args.repeats, 1)),
        ("--timeout", args.timeout, 1),
    ):
        if not value >= least:
            raise UsageError(f"{flag} {value}", hint=f"give {least} or more")


def default_choice(plan: Plan, space: tuple[TunedSetting, ...]) -> dict[str, str]:
    """The choice of the plan itself. For an argument of the script, this is the first of its values."""
    planned = {setting.name: setting.value for setting in plan.environment if setting.value is not None}
    return {
        setting.name: setting.values[0] if setting.argument is not None else planned.get(setting.name) or UNSET
        for setting in space
    }


def _default_space(plan: Plan) -> tuple[TunedSetting, ...]:
    vendor = plan.topology.devices[0].vendor if plan.topology.devices else None
    cores = min((len(rank.cpus) for rank in plan.binding.ranks if rank.cpus), default=1)
    return default_space(vendor, fabric_of(plan.topology.nics), cores)


def _told(trials: Trials, most: int) -> Measure:
    """Print a line about each trial on standard error, because a search takes minutes."""
    count = 0

    def measure(choice: Choice) -> Trial:
        nonlocal count
        count += 1
        trial = trials.measure(choice)
        said = _value(trial.value, trials.objective) if trial.value is not None else f"failed: {trial.failure}"
        say(f"windlass: trial {count} of at most {most}: {_choice(choice)}: {said}")
        return trial

    return measure


def verdict_lines(verdict: SearchResult, objective: Objective) -> list[str]:
    """The result of the search, with the answer first."""
    if verdict.winner:
        lines = [f"use {_choice(verdict.winner)}: {verdict.gain or 0.0:.1%} less than the default"]
    else:
        lines = [f"keep the default: {verdict.why}"]
    if verdict.default_value is not None:
        lines.append(f"  default {_value(verdict.default_value, objective)} ({_choice(verdict.default)})")
    if verdict.winner_value is not None:
        lines.append(f"  best    {_value(verdict.winner_value, objective)}; spread {_value(verdict.spread, objective)}")
    if verdict.drift is not None:
        lines.append(f"  the default was {verdict.drift:+.1%} at the end against the beginning (drift)")
    failed = [trial for trial in verdict.trials if trial.value is None]
    lines += [f"  failed: {_choice(trial.choice)}: {trial.failure}" for trial in failed[:8]]
    lines.append(f"  {counted(len(verdict.trials), 'trial')}, {sum(t.seconds for t in verdict.trials):.0f} s")
    return lines


def _keep(
    verdict: SearchResult, plan: Plan, space: tuple[TunedSetting, ...], folders: ConfigFolders, objective: Objective
) -> list[str]:
    arguments = {setting.name for setting in space if setting.argument is not None}
    variables = {name: value for name, value in verdict.winner.items() if name not in arguments}
    lines = []
    if variables and plan.site in site_names(folders):
        because = (
            f"windlass tune, {time.strftime('%Y-%m-%d')}: {objective} {_value(verdict.default_value, objective)} -> "
            f"{_value(verdict.winner_value, objective)} on {counted(plan.nodes, 'node')} x {plan.ranks_per_node} ranks"
        )
        path = write_overlay(folders, plan.site, variables, because, several_nodes=plan.nodes > 1)
        lines.append(f"written to {path}: the next plan uses it; `windlass explain {next(iter(variables))}` says why")
    if len(variables) < len(verdict.winner):
        lines.append(f"yours to set: {_flags({k: v for k, v in verdict.winner.items() if k in arguments}, space)}")
    return lines


def _flags(choice: Choice, space: tuple[TunedSetting, ...]) -> str:
    arguments = {setting.name: setting.argument for setting in space}
    words = []
    for name, value in choice.items():
        template = arguments.get(name)
        if template is not None:
            words.append(template.replace("{value}", value))
        else:
            words.append(f"--env ~{name}" if value == UNSET else f"--env {name}={value}")
    return " ".join(words)


def _choice(choice: Choice) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())


def _value(value: float | None, objective: Objective) -> str:
    if value is None:
        return "?"
    if objective == "busbw":
        return f"{1 / value:.2f} GB/s" if value else "?"
    return f"{value:.2f} ms" if objective == "step" else f"{value:.2f} s"
