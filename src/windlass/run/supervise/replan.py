"""The plan of the next start: without bad hosts, and independent of leftovers of the last start. Pure.

Also submits the next job of a run whose time is up.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobSpec
from windlass.base.notation.hostlist import expand_hostlist, fold_hostlist
from windlass.errors import UsageError
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.model.site import SchedulerSpec
from windlass.node.sys.reading import read_text
from windlass.plan.components import plan_whole
from windlass.plan.inputs import PlanningContext
from windlass.plan.plan import make_plan
from windlass.plan.shape import choose_hosts
from windlass.run.folder import RunFolder
from windlass.run.submit import submit_script
from windlass.run.supervise.evidence import ask_disposition


def usable_hosts(context: PlanningContext, bad: frozenset[str]) -> tuple[str, ...]:
    """Return the hosts of the allocation that are not known to be bad, in order."""
    hosts = context.allocation.hosts if context.allocation else ()
    return tuple(host for host in hosts if host not in bad)


def spare_hosts(plan: Plan, context: PlanningContext, bad: frozenset[str]) -> int:
    """Return the number of unused hosts that could replace bad ones."""
    used = expand_hostlist(plan.hosts) if plan.hosts else ()
    return len([host for host in usable_hosts(context, bad) if host not in used])


def next_plan(plan: Plan, context: PlanningContext, bad: frozenset[str]) -> Plan:
    """Return the same plan on hosts without the bad ones. Its secrets do not change."""
    used = expand_hostlist(plan.hosts) if plan.hosts else ()
    if bad & set(used) and context.allocation is not None:
        plan = on_hosts(plan, context, choose_hosts(usable_hosts(context, bad), plan.nodes, context.bad_hosts))
    words = get_launcher(plan.launcher).again
    if not words or any(argument.words == words for argument in plan.launch):
        return plan
    again = Argument(words=words, because="a failed start may not have released all resources yet")
    return msgspec.structs.replace(plan, launch=(*plan.launch, again))


def in_job(plan: Plan, context: PlanningContext) -> Plan:
    """Return a saved plan on the hosts of the current job. Hosts that failed recently come last."""
    assert context.allocation is not None
    return on_hosts(plan, context, choose_hosts(context.allocation.hosts, plan.nodes, context.avoided_hosts))


def on_hosts(plan: Plan, context: PlanningContext, hosts: tuple[str, ...]) -> Plan:
    """Plan again for these hosts of the allocation."""
    request = msgspec.structs.replace(
        plan.request, hosts=fold_hostlist(hosts), nodes=None, ranks_per_node=plan.ranks_per_node, site=plan.site
    )
    return msgspec.structs.replace(_replanned(plan, request, context), remarks=plan.remarks)


def on_node(plan: Plan, context: PlanningContext) -> Plan:
    """Plan again with the node of the job, if the plan was made without seeing it."""
    return _replanned(plan, msgspec.structs.replace(plan.request, nodes=plan.nodes, site=plan.site), context)


def _replanned(plan: Plan, request: Request, context: PlanningContext) -> Plan:
    """Plan another request for the same run. Secrets do not change: redacted in the plan, and in their file."""
    return _with_hidden(make_plan(request, context)[0], plan, plan.request)


def components_in_place(plan: Plan, context: PlanningContext) -> Plan:
    """Plan the components of a saved job again, on the hosts of the current job."""
    fresh, _ = plan_whole(msgspec.structs.replace(plan.request, site=plan.site), context)
    parts = (_with_hidden(new, old, new.request) for new, old in zip(fresh.parts, plan.parts, strict=True))
    return msgspec.structs.replace(fresh, request=plan.request, directives=plan.directives, parts=tuple(parts))


def _with_hidden(fresh: Plan, plan: Plan, request: Request) -> Plan:
    """Return a new plan with the command and the hidden values of the saved one."""
    hidden = {setting.name: setting for setting in plan.environment if setting.secret}
    return msgspec.structs.replace(
        fresh,
        command=plan.command,
        trainer=plan.trainer,
        secret_words=plan.secret_words,
        request=request,
        environment=tuple(hidden.get(setting.name, setting) for setting in fresh.environment),
        directives=plan.directives,
    )


BATCH_FILE = "batch.sh"
LOG_FILE = "job.log"


def resubmit(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], bad: frozenset[str], deadline_s: float | None = None
) -> str:
    """Submit the run's batch script again and return the job id. Raises `WindlassError` if that is not possible."""
    script = folder.part(BATCH_FILE)
    if plan.scheduler == "none" or not script.exists():
        raise UsageError(
            "this run was not made by `windlass submit`, so there is no batch script to submit again",
            hint="submit it with --until-done",
        )
    refuse_cancelled(plan, environ, deadline_s)
    if bad:
        text = with_excluded(read_text(script, errors="surrogateescape"), plan, bad)
        folder.write_signed(BATCH_FILE, text.encode("utf-8", "surrogateescape"), mode=0o700)
    log = folder.part(LOG_FILE)
    if log.exists():  # the next job starts a new log, and this job continues to write to the renamed file
        log.rename(folder.part(f"job-{plan.job_id}.log"))
    job_id = submit_script(plan, str(script), environ, from_job=True)
    folder.write("job_id", job_id + "\n")
    return job_id


def refuse_cancelled(plan: Plan, environ: Mapping[str, str], deadline_s: float | None) -> None:
    """Raise if a user cancelled the job. It must not be submitted again, even if its time was nearly up."""
    disposition = ask_disposition(plan, environ, deadline_s)
    if disposition == "cancelled":
        raise UsageError(f"job {plan.job_id} was cancelled", hint="submit it again if you still need it")
    if disposition == "requeued":
        raise UsageError(
            f"job {plan.job_id} is in the queue again: the scheduler starts it by itself",
            hint="wait for it, or cancel that job first",
        )


def with_excluded(text: str, plan: Plan, bad: frozenset[str]) -> str:
    """Return the batch script with a directive that excludes these hosts, if the scheduler has one."""
    scheduler = get_scheduler(plan.scheduler)
    if not scheduler.can_exclude:
        return text
    made = _excluding(plan, tuple(sorted(bad)))
    line = scheduler.directive_line(made)
    lines = [one for one in text.splitlines() if _head(one) != _head(line)]
    return "\n".join([lines[0], line, *lines[1:]]) + "\n"


def _excluding(plan: Plan, hosts: tuple[str, ...]) -> Argument:
    """Return the scheduler's argument for it: the difference between a job with and without these excluded hosts."""
    scheduler = get_scheduler(plan.scheduler)
    spec = JobSpec(name=plan.name, nodes=plan.nodes, ranks_per_node=plan.ranks_per_node)
    plain = scheduler.directives(spec, SchedulerSpec())
    (made,) = (
        argument
        for argument in scheduler.directives(msgspec.structs.replace(spec, exclude_hosts=hosts), SchedulerSpec())
        if argument not in plain
    )
    return made


def _head(line: str) -> str:
    """Return a directive without its value and quotes."""
    return line.partition("=")[0].replace("'", "")
