"""The agents of a plan: one small process per node beside the ranks, where something needs it. Pure.

Nothing here starts anything: `windlass.agents` does, with the node step that the plan has.
"""

from __future__ import annotations

import msgspec

from windlass.backends.launchers.base import NodeStep
from windlass.model.origin import Origin
from windlass.model.plan import AgentService, AgentsPlan, Plan
from windlass.model.request import Request
from windlass.plan.node_step import plan_node_step

HOSTS_FILE = "agent-hosts"
READY_S = 30.0
STAGE_S = 4 * 3600.0
"""Staging is over when the agents are up."""
_INTERPRETER = "a Python from 3.9 on that the node has; where it has none, the one of windlass travels"
_ASIDE = "set aside on each node: the site keeps them free for agents"
_SPARE = "of each node, where no rank is bound"
_SHARED = "no core is to spare: agents share those of the ranks"


def plan_agents(plan: Plan) -> AgentsPlan | None:
    """The agents that the request of this plan needs, or None where it needs none. `plan.agents` does not matter."""
    services = _services(plan.request)
    if not services:
        return None
    cpus, cpus_because = _cpus(plan)
    return AgentsPlan(
        services=services,
        launch=_step(plan, services).arguments,
        cpus=cpus,
        cpus_because=cpus_because,
        interpreter=_INTERPRETER,
        ready_s=STAGE_S if plan.request.stage else plan.cache.ready_s if plan.cache else READY_S,
        because="; ".join(_REASONS[service] for service in services),
        origin=Origin(scope="flag", where=", ".join(_flags(plan.request))),
    )


def agents_step(plan: Plan) -> NodeStep:
    """The node step that holds the agents, as the plan has it."""
    assert plan.agents is not None
    step = _step(plan, plan.agents.services)
    return msgspec.structs.replace(step, arguments=plan.agents.launch)


def _step(plan: Plan, services: tuple[AgentService, ...]) -> NodeStep:
    """Samplers have to see the devices that they tell of."""
    return plan_node_step(plan, "agents", host_file=HOSTS_FILE, devices="sampler" in services)


def needs_agents(request: Request) -> bool:
    return bool(_services(request))


def _services(request: Request) -> tuple[AgentService, ...]:
    if request.stage:
        return ("stage",)
    wanted: tuple[tuple[AgentService, bool], ...] = (
        ("cache", bool(request.cache)),
        ("heartbeat", request.supervised),
        ("sampler", request.watch or request.profile == "torch" or bool(request.hang_after_s)),
    )
    return tuple(name for name, asked in wanted if asked)


_REASONS: dict[AgentService, str] = {
    "cache": "the nodes read the folders of --cache once and hand them on",
    "heartbeat": "a rank that hangs or dies is noticed on its node, and the run can start again",
    "sampler": "nodes and steps are looked at every few seconds, for `windlass watch`",
    "stage": "the nodes hand on what they get",
}


def _flags(request: Request) -> tuple[str, ...]:
    asked = {
        "--cache": request.cache,
        "--restarts": request.restarts,
        "--spares": request.spares,
        "--hang-after": request.hang_after_s,
        "--until-done": request.until_done,
        "--watch": request.watch,
        "--profile": request.profile == "torch",
        "windlass stage": request.stage,
    }
    return tuple(name for name, value in asked.items() if value)


def _cpus(plan: Plan) -> tuple[tuple[int, ...], str]:
    """CPUs for the agents and why these: those that the site sets aside, else a core that no rank is bound to."""
    binding, bound = plan.binding, {cpu for rank in plan.binding.ranks for cpu in rank.cpus}
    if binding.agent_cpus:
        return binding.agent_cpus, _ASIDE
    if bound:
        taken = {*bound, *binding.comm_cpus, *plan.topology.reserved}
        spare = [core.cpus for core in plan.topology.usable_cores() if not taken.intersection(core.cpus)]
        if spare:
            return spare[-1], _SPARE
    return (), _SHARED
