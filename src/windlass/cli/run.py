"""Run a script on this machine, or on all nodes of this allocation."""

from __future__ import annotations

import argparse
import sys

import msgspec

from windlass.agents.cache_service import cache_beside
from windlass.cli.alive import kept_alive
from windlass.cli.options import add_request_options, parse_with_command, request_from
from windlass.cli.result import Result
from windlass.cli.settle import announce, hosts_of, settle
from windlass.errors import UsageError
from windlass.failure.verdict import verdict_lines
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.model.request import Request
from windlass.notation.cpulist import format_cpulist
from windlass.notation.hostlist import fold_hostlist
from windlass.plan.inputs import Secrets
from windlass.plan.plan import make_plan
from windlass.run.context import Surroundings, current_environ, look_around
from windlass.run.execute import execute, good_end, prepare
from windlass.run.folder import RunFolder, is_run, make_folder, open_folder, read_plan, restart
from windlass.run.output import View, show_ranks
from windlass.run.verdict import judge_run
from windlass.settings import Settings, read_settings
from windlass.supervise.attempts import own, refuse_running
from windlass.supervise.replan import in_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.add_argument("--plan", metavar="FILE", help="run a saved plan (what a batch script does)")
    parser.add_argument("--show", default="0", metavar="RANKS", help="ranks to show: 0 (default), 0,3-5, all, none")
    parser.add_argument("--allow-login", action="store_true", help="run although this looks like a login node")
    parser.add_argument("--quiet", "-q", action="store_true", help="no words of windlass itself unless something fails")


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    args = parse_with_command(parser, argv)
    if args.plan is not None:
        beside = {"help", "plan", "show", "quiet", "allow_login", "run_dir"}
        for action in parser._actions:
            if action.dest not in beside and getattr(args, action.dest) != action.default:
                raise UsageError(
                    f"{action.option_strings[0]} beside --plan: the plan has decided that already",
                    hint="make a new plan with `windlass plan --json`, or leave --plan out",
                )
    return args


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    settings = read_settings(environ)
    if args.plan:
        plan, secrets, folder, around = _planned(args, settings, environ)
    else:
        plan, secrets, folder, around = _fresh(args, settings, environ)
    show = show_ranks(args.show, plan.world_size)
    view = View(show, sys.stdout, sys.stderr, width=len(str(plan.world_size - 1)))
    return _run(plan, secrets, folder, around, view, environ, quiet=args.quiet)


def _run(
    plan: Plan,
    secrets: Secrets,
    folder: RunFolder,
    around: Surroundings,
    view: View,
    environ: dict[str, str],
    *,
    quiet: bool,
) -> Result:
    own(folder, plan.job_id)
    end = kept_alive if plan.request.supervised else to_its_end
    record = end(plan, secrets, folder, around, view, environ, quiet=quiet)
    return Result(data=None, exit_code=record.exit_code)


def resume_here(folder: RunFolder, settings: Settings, environ: dict[str, str], args: argparse.Namespace) -> Result:
    """Go on with a run from here, with its saved plan or, for another number of nodes or ranks, a new one."""
    args = argparse.Namespace(**vars(args), plan=str(folder.path), command=[], run_dir=None)
    if args.nodes is None and args.ranks_per_node is None:
        plan, secrets, folder, around = _planned(args, settings, environ)
    else:
        folder.keep_to_ourselves()
        old = read_plan(folder.path)
        _refuse_hidden(old, folder, str(folder.path))
        request = msgspec.structs.replace(
            old.request,
            hosts=None,
            nodes=args.nodes or old.nodes,
            ranks_per_node=args.ranks_per_node or old.ranks_per_node,
        )
        plan, secrets, around = plan_here(request, settings, environ, allow_login=True)
        restart(folder)
        folder.save_plan(plan, Secrets())
    view = View(show_ranks(args.show, plan.world_size), sys.stdout, sys.stderr, width=len(str(plan.world_size - 1)))
    return _run(plan, secrets, folder, around, view, environ, quiet=args.quiet)


def to_its_end(
    plan: Plan,
    secrets: Secrets,
    folder: RunFolder,
    around: Surroundings,
    view: View,
    environ: dict[str, str],
    *,
    quiet: bool,
) -> RunRecord:
    """Start a plan, show its ranks, tell how it ended."""
    try:
        if secrets:
            folder.save_plan(plan, secrets)
        hosts = hosts_of(plan)
        facts = settle(plan, folder, hosts, around, environ, folder.run_id)
        if not quiet:
            announce(plan, folder, view)
        prepare(plan, folder, facts, hosts)
    except BaseException:
        folder.forget_secrets()  # nothing has started that could need them
        raise
    beside = cache_beside(plan, folder, facts, hosts, view, environ, quiet=quiet) if plan.cache else None
    record = execute(plan, folder, facts, hosts, view, environ, beside)
    if record.outcome != "ok":
        for line in verdict_lines(judge_run(plan, folder, record), record, folder.path, shown=view.shows):
            view.note(line)
    elif not quiet:
        for line in good_end(plan, record, folder):
            view.note(line)
    return record


def _fresh(
    args: argparse.Namespace, settings: Settings, environ: dict[str, str]
) -> tuple[Plan, Secrets, RunFolder, Surroundings]:
    request = request_from(args, environ)
    plan, secrets, around = plan_here(request, settings, environ, allow_login=args.allow_login)
    show_ranks(args.show, plan.world_size)
    folder = make_folder(request.run_dir, settings.runs_dir, plan.name)
    folder.claim()
    folder.save_plan(plan, secrets)
    return plan, secrets, folder, around


def plan_here(
    request: Request, settings: Settings, environ: dict[str, str], *, allow_login: bool
) -> tuple[Plan, Secrets, Surroundings]:
    """The plan of a request that is to run from here, now; refused on a login node."""
    around = look_around(request, settings, environ=environ, here=True)
    refuse_login(around, request, allowed=allow_login or settings.allow_login)
    plan, secrets = make_plan(request, around.context)
    return msgspec.structs.replace(plan, remarks=around.remarks + plan.remarks), secrets, around


def _planned(
    args: argparse.Namespace, settings: Settings, environ: dict[str, str]
) -> tuple[Plan, Secrets, RunFolder, Surroundings]:
    """A saved plan, completed with what only the job knows: its hosts and, where the plan could not, its node."""
    if args.command:
        raise UsageError("--plan and a command were given", hint="the plan says what to run")
    saved = open_folder(args.plan) if is_run(args.plan) else None
    if saved:
        saved.keep_to_ourselves()
    plan = read_plan(args.plan)
    if saved and args.run_dir is not None:
        raise UsageError(f"--run-dir beside --plan {args.plan}, which lies in a run folder", hint="leave it out")
    if saved:
        refuse_running(saved)
    _refuse_hidden(plan, saved, args.plan)
    here = msgspec.structs.replace(plan.request, nodes=None, ranks_per_node=plan.ranks_per_node, site=plan.site)
    around = look_around(here, settings, environ=environ, here=True)
    allocation = around.context.allocation
    if plan.scheduler != "none" and allocation is None:
        raise UsageError(
            f"{args.plan} is a plan for a {plan.scheduler} job, and this is not one",
            hint="submit it, or plan with --scheduler none",
        )
    if plan.topology.cores and allocation is not None:
        if len(allocation.hosts) < plan.nodes:
            raise UsageError(f"the plan has {plan.nodes} nodes, but this job has {len(allocation.hosts)}")
        if plan.request.supervised:
            plan = in_job(plan, around.context)
        else:
            plan = msgspec.structs.replace(
                plan, hosts=fold_hostlist(allocation.hosts[: plan.nodes]), job_id=allocation.job_id
            )
    elif plan.topology.cores:
        _same_machine(plan, around, args.plan)
    elif plan.request.supervised and allocation is not None:
        plan = in_job(plan, around.context)
    else:
        plan = _planned_again(plan, around)
    if saved:
        restart(saved)
    folder = saved or make_folder(args.run_dir, settings.runs_dir, plan.name)
    folder.save_plan(plan, Secrets())
    return plan, Secrets(), folder, around


def _refuse_hidden(plan: Plan, saved: RunFolder | None, where: str) -> None:
    hidden = [setting.name for setting in plan.environment if setting.secret and setting.origin.scope == "flag"]
    if (hidden or plan.secret_words) and not (saved and saved.has_secrets()):
        raise UsageError(
            f"{where} hides secrets ({', '.join(hidden) or 'in the command'}), and their values are not there",
            hint="they are removed when a run ends, and plans never hold them: use `windlass run` with all its options",
        )


def _same_machine(plan: Plan, around: Surroundings, where: str) -> None:
    """A plan without a scheduler is for one machine; its cores must be here."""
    wanted = {cpu for rank in plan.binding.ranks for cpu in rank.cpus}
    missing = wanted - set(around.context.topology.cpus)
    if missing:
        raise UsageError(
            f"{where} binds ranks to CPUs {format_cpulist(tuple(sorted(missing)))}, which this machine does not have",
            hint="it was made on another machine: make it anew here",
        )


def _planned_again(plan: Plan, around: Surroundings) -> Plan:
    """The plan made anew with the node that the job got. What is secret stays as it was: hidden, and in its file."""
    fresh, _ = make_plan(msgspec.structs.replace(plan.request, nodes=plan.nodes, site=plan.site), around.context)
    hidden = {setting.name: setting for setting in plan.environment if setting.secret}
    environment = tuple(hidden.get(setting.name, setting) for setting in fresh.environment)
    return msgspec.structs.replace(
        fresh,
        command=plan.command,
        secret_words=plan.secret_words,
        request=plan.request,
        environment=environment,
        directives=plan.directives,
    )


def refuse_login(around: Surroundings, request: Request, *, allowed: bool) -> None:
    """On a login node ranks would disturb everybody; where a scheduler rules the nodes, it has to be asked."""
    context = around.context
    if context.allocation is not None or request.scheduler == "none" or allowed:
        return
    detection = around.detection
    if detection is not None and detection.login.verdict == "yes" and context.site.file.login_refuse:
        raise UsageError(
            f"this is a login node of {context.site.name} ({detection.login.because})",
            hint="use `windlass submit` with the same arguments, or get an allocation first; --allow-login overrides",
        )
    if context.site.file.scheduler.kind != "none":
        raise UsageError(
            f"{context.site.name} has a scheduler ({context.site.file.scheduler.kind}), and this is not inside a job",
            hint="use `windlass submit`, or get an allocation first; --scheduler none runs on this machine alone",
        )
