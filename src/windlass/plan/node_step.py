"""The node steps of a plan: a small task on each of its nodes, by its launcher. Pure."""

from __future__ import annotations

import re

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import NodeStep, NodeStepSpec
from windlass.base.notation.hostlist import expand_hostlist
from windlass.model.plan import Plan
from windlass.plan.environment.modules import module_lines

_TRAVELLING = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_NAMED = re.compile(r"\$\{(\w+)\}")


def travelling_names(folder: str) -> tuple[str, ...]:
    """Variables that a task needs where the launcher carries only what is named: those that `folder` is made of too."""
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
    """One task on each node of the plan, or on these hosts, or on so many nodes of it, by the launcher that the ranks'
    own step finds. `host_file` is a name in the run folder for launchers that read hosts from a file; without it they
    are said as arguments. `devices`: the task looks at the ranks' devices."""
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
