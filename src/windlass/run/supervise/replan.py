"""The plan of the next start: on other hosts where one is bad, and past what the last start left behind. Pure.

Also the next job of a run whose time is up.
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
from windlass.plan.inputs import PlanningContext
from windlass.plan.plan import make_plan
from windlass.plan.shape import choose_hosts
from windlass.run.folder import RunFolder
from windlass.run.submit import submit_script
from windlass.run.supervise.evidence import ask_disposition


def usable_hosts(context: PlanningContext, bad: frozenset[str]) -> tuple[str, ...]:
    """Hosts of the allocation that are not known to be bad, in its order."""
    hosts = context.allocation.hosts if context.allocation else ()
    return tuple(host for host in hosts if host not in bad)


def spare_hosts(plan: Plan, context: PlanningContext, bad: frozenset[str]) -> int:
    """How many hosts that are not in use now could take the place of bad ones."""
    used = expand_hostlist(plan.hosts) if plan.hosts else ()
    return len([host for host in usable_hosts(context, bad) if host not in used])


def next_plan(plan: Plan, context: PlanningContext, bad: frozenset[str]) -> Plan:
    """The same plan for hosts without the bad ones. What is secret in it stays as it was."""
    used = expand_hostlist(plan.hosts) if plan.hosts else ()
    if bad & set(used) and context.allocation is not None:
        plan = on_hosts(plan, context, choose_hosts(usable_hosts(context, bad), plan.nodes, context.bad_hosts))
    words = get_launcher(plan.launcher).again
    if not words or any(argument.words == words for argument in plan.launch):
        return plan
    again = Argument(words=words, because="a start that failed may not have given back everything yet")
    return msgspec.structs.replace(plan, launch=(*plan.launch, again))


def in_job(plan: Plan, context: PlanningContext) -> Plan:
    """A saved plan in the job that it runs in now: on this job's hosts, those that failed lately left to the end."""
    assert context.allocation is not None
    return on_hosts(plan, context, choose_hosts(context.allocation.hosts, plan.nodes, context.avoided_hosts))


def on_hosts(plan: Plan, context: PlanningContext, hosts: tuple[str, ...]) -> Plan:
    """The plan made anew for these hosts of the allocation."""
    request = msgspec.structs.replace(
        plan.request, hosts=fold_hostlist(hosts), nodes=None, ranks_per_node=plan.ranks_per_node, site=plan.site
    )
    return msgspec.structs.replace(_replanned(plan, request, context), remarks=plan.remarks)


def on_node(plan: Plan, context: PlanningContext) -> Plan:
    """The plan made anew with the node that the job got, where the plan could not know it."""
    return _replanned(plan, msgspec.structs.replace(plan.request, nodes=plan.nodes, site=plan.site), context)


def _replanned(plan: Plan, request: Request, context: PlanningContext) -> Plan:
    """The plan of another request for the same run. What is secret stays as it was: hidden, and in its file."""
    fresh, _ = make_plan(request, context)
    hidden = {setting.name: setting for setting in plan.environment if setting.secret}
    return msgspec.structs.replace(
        fresh,
        command=plan.command,
        secret_words=plan.secret_words,
        request=plan.request,
        environment=tuple(hidden.get(setting.name, setting) for setting in fresh.environment),
        directives=plan.directives,
    )


BATCH_FILE = "batch.sh"
LOG_FILE = "job.log"


def resubmit(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], bad: frozenset[str], deadline_s: float | None = None
) -> str:
    """Submit the run's batch script again; returns the job's id. Raises `WindlassError` where that is not possible."""
    script = folder.part(BATCH_FILE)
    if plan.scheduler == "none" or not script.exists():
        raise UsageError(
            "this run was not made by `windlass submit`, so there is no batch script to send again",
            hint="submit it with --until-done",
        )
    refuse_cancelled(plan, environ, deadline_s)
    if bad:
        text = with_excluded(read_text(script, errors="surrogateescape"), plan, bad)
        folder.write_signed(BATCH_FILE, text.encode("utf-8", "surrogateescape"), mode=0o700)
    log = folder.part(LOG_FILE)
    if log.exists():  # the next job begins its log anew; this one goes on writing under the other name
        log.rename(folder.part(f"job-{plan.job_id}.log"))
    job_id = submit_script(plan, str(script), environ, from_job=True)
    folder.write("job_id", job_id + "\n")
    return job_id


def refuse_cancelled(plan: Plan, environ: Mapping[str, str], deadline_s: float | None) -> None:
    """A person who cancels a job does not want it back, even if its time was nearly up anyway."""
    disposition = ask_disposition(plan, environ, deadline_s)
    if disposition == "cancelled":
        raise UsageError(f"job {plan.job_id} was cancelled", hint="submit it again yourself if you want it back")
    if disposition == "requeued":
        raise UsageError(
            f"job {plan.job_id} is in the queue again: the scheduler starts it by itself",
            hint="wait for it, or cancel that job first",
        )


def with_excluded(text: str, plan: Plan, bad: frozenset[str]) -> str:
    """The batch script with a directive that leaves these hosts out, where the scheduler has one."""
    scheduler = get_scheduler(plan.scheduler)
    if not scheduler.can_exclude:
        return text
    made = _excluding(plan, tuple(sorted(bad)))
    line = scheduler.directive_line(made)
    lines = [one for one in text.splitlines() if _head(one) != _head(line)]
    return "\n".join([lines[0], line, *lines[1:]]) + "\n"


def _excluding(plan: Plan, hosts: tuple[str, ...]) -> Argument:
    """The scheduler's own words for it: what a job with these hosts to leave out has, and one without has not."""
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
    """What a directive says, without the value and its quotes."""
    return line.partition("=")[0].replace("'", "")
