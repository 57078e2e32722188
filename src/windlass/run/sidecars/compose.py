"""The processes that run next to the ranks of a plan: one agent per node with the services that the plan names.

Only this module composes them: for runs that start once, for supervised runs and for `cache start`. It also describes
the agents of a plan as a value (`AgentsSpec`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windlass.agents.start import Agents, AgentsSpec, ServiceSpec
from windlass.base.settings import read_settings
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.plan.agents import agents_step
from windlass.plan.cache import agents_folder
from windlass.plan.render.rank_script import MPS_FOLDER
from windlass.plan.render.variables import JobFacts
from windlass.run.execute import Sidecar
from windlass.run.folder import RunFolder
from windlass.run.planning import Run
from windlass.run.rendezvous import host_addresses, named_hosts
from windlass.run.sidecars.cache_service import CacheSidecar, cache_service
from windlass.run.sidecars.heartbeat import HeartbeatSidecar, heartbeat_service
from windlass.run.sidecars.sampler import SamplerSidecar, sampler_service


def agents_spec(
    plan: Plan,
    facts: JobFacts,
    hosts: tuple[str, ...],
    services: tuple[ServiceSpec, ...],
    environ: Mapping[str, str],
) -> AgentsSpec:
    """Return the agents of a plan with these services, which are the services that the plan names."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sidecars:
    """The sidecar of a run (None: its plan needs none), and its part that watches the ranks of a supervised run."""

    whole: Sidecar | None = None
    heartbeat: HeartbeatSidecar | None = None


def compose_sidecars(run: Run, facts: JobFacts, hosts: tuple[str, ...]) -> Sidecars:
    """Create the sidecars that the plan of a run names. All of them share the agents."""
    plan, folder, view = run.plan, run.folder, run.view
    if plan.agents is None:
        return Sidecars()
    agents = run_agents(plan, folder, facts, hosts, run.environ)
    whole: Sidecar | None = None
    heartbeat: HeartbeatSidecar | None = None
    if plan.cache is not None:
        whole = CacheSidecar(agents, folder, view, hosts, quiet=run.quiet)
    if {"heartbeat", "mps"} & {*plan.agents.services}:
        whole = heartbeat = HeartbeatSidecar(agents, whole, plan, folder, view, hosts)
    if "sampler" in plan.agents.services:
        whole = SamplerSidecar(agents, whole, plan, folder, view, hosts, quiet=run.quiet)
    return Sidecars(whole=whole, heartbeat=heartbeat if "heartbeat" in plan.agents.services else None)


def run_sidecar(run: Run, facts: JobFacts, hosts: tuple[str, ...]) -> Sidecar | None:
    """Create the sidecar of a run that starts once."""
    return compose_sidecars(run, facts, hosts).whole


def run_agents(
    plan: Plan, folder: RunFolder, facts: JobFacts, hosts: tuple[str, ...], environ: Mapping[str, str]
) -> Agents:
    """Create the agents of a plan, with the services that it names. Starts nothing."""
    assert plan.agents is not None
    services = tuple(_service(name, plan, facts, hosts, environ) for name in plan.agents.services)
    return Agents(agents_spec(plan, facts, hosts, services, environ), folder, environ)


def _service(name: str, plan: Plan, facts: JobFacts, hosts: tuple[str, ...], environ: Mapping[str, str]) -> ServiceSpec:
    if name == "cache" and plan.cache is not None:
        return cache_service(plan.cache, read_settings(environ).traces_dir)
    if name == "heartbeat":
        return heartbeat_service(facts, plan.request.hang_after_s, len(hosts))
    if name == "mps":
        return ServiceSpec(name=name, entry="windlass.node.agent.mps:make", settings={"folder": MPS_FOLDER})
    if name == "sampler":
        return sampler_service(len(hosts))
    raise UsageError(f"the plan names the service {name}, which no run hosts", hint="plan the run again")
