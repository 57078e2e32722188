"""A Ray cluster as a part of the plan: who gets one, and the lines of the rank script that start it. Pure.

Each node has one rank, with all of its cores and devices. `node.ray.cluster` is the program of these ranks.
"""

from __future__ import annotations

import json

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.base.notation.shell import expandable, quote
from windlass.errors import UsageError
from windlass.model.finding import Finding
from windlass.model.origin import Origin
from windlass.model.plan import Binding, Plan, RayPlan
from windlass.model.request import Request
from windlass.node.ray import ARCHIVE_FILE
from windlass.plan.environment.ranks import rank_variable_names
from windlass.plan.inputs import PlanningContext
from windlass.plan.render.variables import JobFacts
from windlass.plan.shape import RAY, Shape

INDEPENDENT = "independent"
"""An option of --with at every site: the ranks are separate programs."""


def with_ray(request: Request, context: PlanningContext) -> tuple[Request, PlanningContext]:
    """Return the request for one rank per node, if the user asked for Ray or the script starts Ray.

    The context gets a remark if Ray was not asked for. Raises `UsageError` for options that contradict Ray.
    """
    counts = {"--ranks-per-node": request.ranks_per_node, "--ranks-per-device": request.ranks_per_device}
    wrong = next((f"{name} {count}" for name, count in counts.items() if count not in {None, 1}), None)
    if RAY in request.options:
        if wrong or request.devices == "one":
            text = f"--with ray with {wrong or '--devices one'}: Ray has one process per node, which gets all devices"
            raise UsageError(text, hint="leave it out, and give num_workers in the script")
        return _one_rank(request), context
    given = {*context.users_environment, *(name for name, _ in request.env)}
    if not context.starts_ray or INDEPENDENT in request.options or "RAY_ADDRESS" in given:
        return request, context
    if wrong:
        text = f"{request.command[0]} starts Ray: with {wrong}, each rank starts a Ray of its own"
        found = Finding("ray-per-rank", "warning", text, "leave it out: windlass starts one Ray over all nodes")
    else:
        text = f"{request.command[0]} starts Ray: one Ray over all nodes, and the script runs once, on the first node"
        found = Finding("ray-cluster", "note", text, f"--with {INDEPENDENT}: start the script on all ranks")
        request = _one_rank(request)
    return request, msgspec.structs.replace(context, remarks=(*context.remarks, found))


def _one_rank(request: Request) -> Request:
    options = tuple(dict.fromkeys((*request.options, RAY)))
    return msgspec.structs.replace(request, options=options, ranks_per_node=1, devices="all")


def plan_ray(request: Request, context: PlanningContext, shape: Shape, binding: Binding) -> RayPlan | None:
    """The cluster of a request."""
    if RAY not in request.options:
        return None
    topology = context.topology
    cores = {core.id for rank in binding.ranks for cpu in rank.cpus if (core := topology.core_of(cpu))}
    return RayPlan(
        python=request.python or ("python" if request.container else context.python),
        cpus=len(cores),
        devices=len(shape.all_devices) if shape.all_devices or topology.cores else None,
        because="each rank runs Ray with the cores and devices of its node",
        origin=Origin(scope="flag", where="--with ray, or the imports of the script"),
    )


def ray_lines(plan: Plan, job: JobFacts) -> list[str]:
    """Lines that put the cluster's program in front of the command. Ray's workers get ranks of their own."""
    ray = plan.ray
    if ray is None:
        return []
    settings: dict[str, object] = {"nodes": plan.nodes, "cpus": ray.cpus, "devices": ray.devices, "run_id": job.run_id}
    settings["forwards"] = not get_launcher(plan.launcher).reaches_groups
    names = [name for name in rank_variable_names() if not name.startswith("WINDLASS_")]
    seen = plan.cache is not None and plan.cache.variables  # the node has a view of the interpreter's folder
    return [
        "",
        "# Ray: a head on the first node, which runs the command, and a worker on each other node.",
        f"w_swap {quote(ray.python)}" if seen else f"w_answer={quote(ray.python)}",
        f'set -- "$w_answer" "$WINDLASS_RUN_DIR/{ARCHIVE_FILE}" "$w_node_rank" "$w_master_addr" "$w_master_port" \\',
        f'  {expandable(plan.cache_root)} {quote(json.dumps(settings))} "$@"',
        f"unset {' '.join(names)}",
    ]
