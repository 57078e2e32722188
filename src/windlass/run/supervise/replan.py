"""The plan of the next start: on other hosts where one is bad, and past what the last start left behind. Pure."""

from __future__ import annotations

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.base.notation.hostlist import expand_hostlist, fold_hostlist
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.plan.inputs import PlanningContext
from windlass.plan.plan import make_plan
from windlass.plan.shape import choose_hosts


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
