"""The agents that a plan asks for, as a value."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.agents.start import AgentsSpec, ServiceSpec
from windlass.model.plan import Plan
from windlass.plan.agents import agents_step
from windlass.plan.cache import agents_folder
from windlass.plan.render.job_facts import JobFacts
from windlass.run.rendezvous import host_addresses, named_hosts


def agents_spec(
    plan: Plan,
    facts: JobFacts,
    hosts: tuple[str, ...],
    services: tuple[ServiceSpec, ...],
    environ: Mapping[str, str],
) -> AgentsSpec:
    """The agents of a plan with these services, which are those that it names."""
    assert plan.agents is not None
    return AgentsSpec(
        step=agents_step(plan),
        run_id=facts.run_id,
        hosts=named_hosts(plan, hosts),
        addresses=host_addresses(plan, hosts, environ),
        folder=agents_folder(plan, facts.uid, facts.run_id),
        cpus=plan.agents.cpus,
        services=services,
        ready_s=plan.agents.ready_s,
    )
