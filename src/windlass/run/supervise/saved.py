"""Runs from a saved plan, completed in the job with its hosts and, if the plan did not see it, its node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from windlass.backends.schedulers import get_scheduler, scheduler_of_job
from windlass.base.notation.counts import format_cpulist
from windlass.base.notation.hostlist import fold_hostlist
from windlass.base.settings import read_settings
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.plan.inputs import PlanningContext, Secrets
from windlass.run.context import find_allocation, gather_context
from windlass.run.folder import (
    RunFolder,
    component_folder,
    is_run,
    make_folder,
    open_folder,
    plan_of,
    read_plan,
    read_plan_file,
    restart,
)
from windlass.run.once import planned_run
from windlass.run.output import ViewMaker
from windlass.run.planning import Run, plan_to_run
from windlass.run.submit import Submission, submit_script, write_batch_file
from windlass.run.supervise.attempts import refuse_running
from windlass.run.supervise.replan import BATCH_FILE, components_in_place, in_job, on_node
from windlass.run.supervise.runs import state_of
from windlass.run.trust import require_plan_digest, require_plan_trust, require_trust


def saved_run(
    path: str,
    environ: Mapping[str, str],
    make_view: ViewMaker,
    *,
    run_dir: str | None = None,
    signed_by: str = "",
    content: bytes | None = None,
    quiet: bool = False,
) -> Run:
    """Return the run of a saved plan here, now: in its run folder, or in a new one for a plan outside a run folder.

    `signed_by` is the digest in a batch script. `content` is the plan of a batch script that contains it. A restarted
    job continues in its run folder. Raises `NotTrustedError` for a plan that this user neither made nor trusted.
    """
    settings = read_settings(environ)
    if content is not None and run_dir is not None and _is_run_of_this_job(run_dir, environ):
        path, run_dir, content, signed_by = run_dir, None, None, ""
    saved = open_folder(path) if content is None and is_run(path) else None
    if saved:
        require_trust(saved.path, settings.state_dir, signed_by=signed_by)
        plan = read_plan(path)
    elif content is not None:
        require_plan_digest(content, signed_by)
        plan = plan_of(content, Path(path))
    else:
        plan = _trusted_plan(path, settings.state_dir)
    if saved and run_dir is not None:
        raise UsageError(
            f"--run-dir cannot be combined with --plan {path}, which is in a run folder", hint="leave --run-dir out"
        )
    if saved:
        refuse_running(saved, in_job=scheduler_of_job(environ) is not None)
    for one, part in zip(plan.request.components, plan.parts, strict=True):
        folder = RunFolder(component_folder(saved.path, one.name)) if saved else None
        _refuse_hidden(part, folder, path)
        if folder:
            refuse_running(folder)
    _refuse_hidden(plan, saved, path)
    here = msgspec.structs.replace(plan.request, nodes=None, ranks_per_node=plan.ranks_per_node, site=plan.site)
    if plan.parts:
        here = msgspec.structs.replace(plan.request, site=plan.site)
    _, context = gather_context(here, settings, environ=environ, here=True)
    plan = _completed(plan, context, path)
    view = make_view(plan)
    if saved:
        restart(saved)
    folder = saved or make_folder(run_dir, settings.runs_dir, plan.name, state_dir=settings.state_dir)
    if content is not None:  # for another job of the same run
        write_batch_file(plan, folder)
    folder.save_plan(plan, Secrets())
    return Run(plan=plan, secrets=Secrets(), folder=folder, context=context, view=view, environ=environ, quiet=quiet)


def resume_run(
    folder: RunFolder,
    environ: Mapping[str, str],
    make_view: ViewMaker,
    *,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    quiet: bool = False,
) -> Run | Submission:
    """Continue a run that has ended: return a run that can be started here, or a job for its scheduler.

    Raises `UsageError` if it is running or done, or if this size is not possible from here.
    """
    for name, number in (("--nodes", nodes), ("--ranks-per-node", ranks_per_node)):
        if number is not None and number < 1:
            raise UsageError(
                f"{name} {number}", hint="give 1 or more; leave the option out for the same number as before"
            )
    require_trust(folder.path, read_settings(environ).state_dir)
    state = state_of(folder, environ)
    if state.state in {"running", "waiting"}:
        raise UsageError(f"{folder.path} is {state.state} {state.why}", hint="stop it first with `windlass runs stop`")
    if state.may_live:
        raise UsageError(
            f"{folder.path} may still run: {state.why}",
            hint="run this command where the scheduler responds, or end the job first",
        )
    if state.state == "done":
        raise UsageError(f"{folder.path} is done", hint="start a new run")
    plan = read_plan(folder.path)
    other_size = nodes is not None or ranks_per_node is not None
    if plan.scheduler != "none" and find_allocation(environ) is None:
        return _submitted(plan, folder, environ, other_size=other_size)
    if other_size and plan.parts:
        raise UsageError(
            f"{folder.path} has components, each with its own size", hint="change the job file and start a new run"
        )
    if not other_size:
        return saved_run(str(folder.path), environ, make_view, quiet=quiet)
    _refuse_hidden(plan, folder, str(folder.path))
    request = msgspec.structs.replace(
        plan.request, hosts=None, nodes=nodes or plan.nodes, ranks_per_node=ranks_per_node or plan.ranks_per_node
    )
    planned = plan_to_run(request, environ, allow_login=True)
    view = make_view(planned.plan)
    restart(folder)
    folder.save_plan(planned.plan, Secrets())
    return planned_run(planned, folder, view, environ, quiet=quiet)


def _trusted_plan(path: str, state_dir: Path) -> Plan:
    """Return the plan in a file that the user named and has trusted. The checked content is what runs."""
    file, data = read_plan_file(path)
    plan = plan_of(data, file)
    require_plan_trust(file, data, state_dir)
    return plan


def _is_run_of_this_job(path: str, environ: Mapping[str, str]) -> bool:
    name = scheduler_of_job(environ)
    job_id = environ.get(get_scheduler(name).job_id_variable) if name else None
    return job_id is not None and is_run(path) and read_plan(path).job_id == job_id


def _submitted(plan: Plan, folder: RunFolder, environ: Mapping[str, str], *, other_size: bool) -> Submission:
    if other_size:
        raise UsageError(
            "another number of nodes or ranks needs a new submission on a login node",
            hint="use `windlass submit` with the same snapshot folder, or resume inside an allocation",
        )
    script = folder.part(BATCH_FILE)
    if not script.exists():
        raise UsageError(
            f"{folder.path} ran in an allocation of {plan.scheduler}, and this is no such job",
            hint="get an allocation and run this command in it",
        )
    job_id = submit_script(plan, str(script), environ)
    folder.write("job_id", job_id + "\n")
    return Submission(job_id=job_id, plan=plan, folder=folder, script=script)


def _completed(plan: Plan, context: PlanningContext, where: str) -> Plan:
    """Return the plan on the hosts of this job, or on this machine."""
    allocation = context.allocation
    if plan.scheduler != "none" and allocation is None:
        raise UsageError(
            f"{where} is a plan for a {plan.scheduler} job, and this is no such job",
            hint="submit it, or plan with --scheduler none",
        )
    if plan.parts:
        return components_in_place(plan, context)
    if plan.topology.cores and allocation is not None:
        if len(allocation.hosts) < plan.nodes:
            raise UsageError(
                f"the plan has {plan.nodes} nodes, but this job has {len(allocation.hosts)}",
                hint="get an allocation of that size, or `windlass runs resume --nodes N`",
            )
        if plan.request.supervised:
            return in_job(plan, context)
        hosts = fold_hostlist(allocation.hosts[: plan.nodes])
        return msgspec.structs.replace(plan, hosts=hosts, job_id=allocation.job_id)
    if plan.topology.cores:
        _refuse_other_machine(plan, context, where)
        return plan
    if plan.request.supervised and allocation is not None:
        return in_job(plan, context)
    return on_node(plan, context)


def _refuse_hidden(plan: Plan, saved: RunFolder | None, where: str) -> None:
    hidden = [setting.name for setting in plan.environment if setting.secret and setting.origin.scope == "flag"]
    if (hidden or plan.secret_words) and not (saved and saved.has_secrets()):
        raise UsageError(
            f"{where} hides secrets ({', '.join(hidden) or 'in the command'}), and their values are no longer stored",
            hint="windlass removes them when a run ends, and plans never contain them: use `windlass run` with all "
            "options",
        )


def _refuse_other_machine(plan: Plan, context: PlanningContext, where: str) -> None:
    """Refuse a plan for another machine. A plan without a scheduler needs the cores of its machine."""
    wanted = {cpu for rank in plan.binding.ranks for cpu in rank.cpus}
    missing = wanted - set(context.topology.cpus)
    if missing:
        raise UsageError(
            f"{where} binds ranks to CPUs {format_cpulist(tuple(sorted(missing)))}, which this machine does not have",
            hint="it was made on another machine: make a new plan here",
        )
