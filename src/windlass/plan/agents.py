"""The agents of a plan: one small process per node, for requests that need it. Pure.

This module starts nothing. `windlass.agents` starts the agents with the node step of the plan.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import NodeStep, NodeStepSpec
from windlass.base.notation.hostlist import expand_hostlist
from windlass.model.origin import Origin
from windlass.model.plan import AgentService, AgentsPlan, Plan, RestartPlan
from windlass.model.request import Request
from windlass.plan.environment.modules import module_lines

MPS_SHARE, MPS_PIPES = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY"
_TRAVELLING = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_NAMED = re.compile(r"\$\{(\w+)\}")


def travelling_names(folder: str) -> tuple[str, ...]:
    """Variables for launchers that carry only named variables. They include the variables in `folder`."""
    return tuple(dict.fromkeys((*_TRAVELLING, *_NAMED.findall(folder))))


def plan_node_step(
    plan: Plan,
    purpose: str,
    *,
    hosts: tuple[str, ...] | None = None,
    nodes: int | None = None,
    host_file: str | None = None,
    devices: bool = False,
) -> NodeStep:
    """Return a step with one task per node: on all nodes of the plan, on `hosts`, or on `nodes` nodes.

    The step uses the launcher program of the ranks' step. `host_file` is a file name in the run folder, for launchers
    that read hosts from a file. Without it, the hosts are passed as arguments. With `devices`, the task gets access to
    the ranks' devices.
    """
    if hosts is None:
        hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    spec = NodeStepSpec(
        nodes=nodes or len(hosts) or plan.nodes,
        hosts=hosts,
        host_file=f"{{run_dir}}/{host_file}" if host_file else None,
        name=f"{plan.name}-{purpose}",
        devices=devices,
        executable=plan.launch[0].words[0] if plan.launch else "",
        environment_names=travelling_names(plan.cache_root),
    )
    prologue = (*module_lines(plan.modules_use, plan.modules), *(entry.line for entry in plan.prologue))
    return msgspec.structs.replace(get_launcher(plan.launcher).node_step(spec), prologue=prologue)


HOSTS_FILE = "agent-hosts"
READY_S = 30.0
STANDBY_MB = 400
"""Equal to `windlass.node.agent.standby.MAX_MB` (a test compares them)."""
_OWN_DEVICES = ("--gpu-bind", "--gpus-per-task")
STAGE_S = 4 * 3600.0
"""Deadline for agents of `windlass stage`: they are up only after staging has finished."""
_INTERPRETER = "a Python 3.9 or newer on the node; without one, windlass sends its own"
_ASIDE = "reserved on each node: the site keeps them free for agents"
_SPARE = "of each node, to which no rank is bound"
_SHARED = "no core is free: agents share the cores of the ranks"


def plan_agents(plan: Plan) -> AgentsPlan | None:
    """The agents that the request of this plan needs, or None. `plan.agents` is ignored."""
    services = _services(plan.request, mps=starts_mps(plan))
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
        origin=Origin(scope="flag", where=", ".join(_flags(plan.request, mps="mps" in services))),
        restart=_restart(plan, services),
    )


def _restart(plan: Plan, services: tuple[AgentService, ...]) -> RestartPlan | None:
    """How ranks start again, or None if they never do."""
    if "heartbeat" not in services or not plan.request.restarts_allowed:
        return None
    if plan.ray is not None:
        return RestartPlan(in_place=False, because=f"each start has a new Ray, so it is another {plan.launcher}")
    if not _step(plan, services).follows_stdin:
        because = f"{plan.launcher} carries no orders to the agents, so each start is another {plan.launcher}"
        return RestartPlan(in_place=False, because=because)
    why_not, options = _standby_refusal(plan)
    return RestartPlan(
        in_place=True,
        because="the rank scripts stay and start their ranks again; after a lost node the launcher starts them",
        standby=not why_not,
        standby_because=why_not or f"forks with the imports done, at most {STANDBY_MB} MB of memory on each node",
        options=options,
    )


def _standby_refusal(plan: Plan) -> tuple[str, int]:
    """Why the plan has no standby (empty: it has one), and the number of options of the interpreter."""
    request, command = plan.request, plan.command
    options = 0
    while command[1 + options : 2 + options] and command[1 + options][:1] == "-" and command[1 + options] != "-m":
        options += 2 if command[1 + options] in {"-W", "-X"} else 1
    if plan.container is not None:
        return "none: the interpreter is in the container", 0
    if (
        not PurePath(command[0]).name.startswith("python")
        or len(command) < options + 2
        or "-c" in command[1 : 1 + options]
    ):
        return "none: the command is not a Python script or module", 0
    if request.profile not in {None, "torch"}:
        return f"none: {request.profile} starts the command", 0
    if plan.launcher == "srun" and any(
        word.startswith(_OWN_DEVICES) and "none" not in word for entry in plan.launch for word in entry.words
    ):
        return f"none: {plan.launcher} gives each rank its own devices, and a fork would have those of another rank", 0
    return "", options


def agents_step(plan: Plan) -> NodeStep:
    """The node step that runs the agents, with the arguments of the plan."""
    assert plan.agents is not None
    step = _step(plan, plan.agents.services)
    return msgspec.structs.replace(step, arguments=plan.agents.launch)


def _step(plan: Plan, services: tuple[AgentService, ...]) -> NodeStep:
    """The step of the agents. Samplers and MPS need access to the devices."""
    return plan_node_step(plan, "agents", host_file=HOSTS_FILE, devices=bool({"sampler", "mps"} & {*services}))


def needs_agents(request: Request) -> bool:
    return bool(_services(request))


def starts_mps(plan: Plan) -> bool:
    """Whether windlass starts NVIDIA's MPS on the nodes: ranks share devices, and the user has no daemon."""
    names = {setting.name for setting in plan.environment}
    return (plan.request.ranks_per_device or 1) > 1 and MPS_SHARE in names and MPS_PIPES not in names


def _services(request: Request, *, mps: bool = False) -> tuple[AgentService, ...]:
    if request.stage:
        return ("stage",)
    wanted: tuple[tuple[AgentService, bool], ...] = (
        ("cache", bool(request.cache)),
        ("heartbeat", request.supervised),
        ("mps", mps),
        ("sampler", request.watch or request.profile == "torch" or bool(request.hang_after_s)),
    )
    return tuple(name for name, asked in wanted if asked)


_REASONS: dict[AgentService, str] = {
    "cache": "the nodes read the folders of --cache once and forward them to each other",
    "heartbeat": "agents detect a rank that hangs or dies, so that the run can restart",
    "mps": "the ranks of a device run at the same time, and not in time slices",
    "sampler": "agents sample nodes and steps every few seconds, for `windlass watch`",
    "stage": "the nodes forward the data to each other",
}


def _flags(request: Request, *, mps: bool) -> tuple[str, ...]:
    asked = {
        "--cache": request.cache,
        "--restarts": request.restarts,
        "--spares": request.spares,
        "--hang-after": request.hang_after_s,
        "--until-done": request.until_done,
        "--watch": request.watch,
        "--profile": request.profile == "torch",
        "--ranks-per-device": mps,
        "windlass stage": request.stage,
    }
    return tuple(name for name, value in asked.items() if value)


def _cpus(plan: Plan) -> tuple[tuple[int, ...], str]:
    """CPUs for the agents and the reason.

    The site's reserved CPUs come first, then a core that no rank is bound to.
    """
    binding, bound = plan.binding, {cpu for rank in plan.binding.ranks for cpu in rank.cpus}
    if binding.agent_cpus:
        return binding.agent_cpus, _ASIDE
    if bound:
        taken = {*bound, *binding.comm_cpus, *plan.topology.reserved}
        spare = [core.cpus for core in plan.topology.usable_cores() if not taken.intersection(core.cpus)]
        if spare:
            return spare[-1], _SPARE
    return (), _SHARED
