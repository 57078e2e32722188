"""Planning: decide everything from request, site, topology and allocation. Pure: same inputs, same plan.

The order is: nodes and ranks (`_shape`), the placement of each rank (`_binding`), container and environment, then the
arguments for launcher and scheduler. Every decision has its reason.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

import windlass
from windlass.backends.containers.choose import ContainerChoice, plan_container, runtime_name
from windlass.backends.launchers import get_launcher
from windlass.errors import UsageError
from windlass.model.condition import Facts, holds
from windlass.model.finding import Finding, worst_first
from windlass.model.origin import BUILTIN, Origin
from windlass.model.plan import (
    PLAN_VERSION,
    Binding,
    Plan,
    Prologue,
    RankBinding,
    Rendezvous,
    Setting,
)
from windlass.model.request import Request
from windlass.model.secrets import MASK, is_secret, mask_argv, secret_positions
from windlass.model.site import ModuleSpec, Site
from windlass.plan.agents import needs_agents, plan_agents
from windlass.plan.arguments import batch_directives, launch_arguments, rank_limits
from windlass.plan.cache import plan_cache, with_view
from windlass.plan.command import rank_command, refuse_nested_launcher
from windlass.plan.environment import caches
from windlass.plan.environment.modules import activation_lines
from windlass.plan.forbidden import refuse_forbidden, users_arguments
from windlass.plan.inputs import PlanningContext, Secrets, container_request, container_site
from windlass.plan.profile import check_profile
from windlass.plan.ray import INDEPENDENT, plan_ray, with_ray
from windlass.plan.remarks import binding_remarks, plan_remarks
from windlass.plan.shape import RAY, Shape, decide_shape
from windlass.plan.trainers import RESUME, plan_trainer, trainer_remarks
from windlass.plan.variables import plan_environment
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import binding_request_from_site

_OF_SHAPE = ("name", "partition", "nodes", "ranks_per_node", "scheduler", "launcher", "hosts")


def make_plan(request: Request, context: PlanningContext) -> tuple[Plan, Secrets]:
    """Make the whole plan. Raises `UsageError` for an invalid request, before anything has been started."""
    request, context = with_ray(request, _without_devices(context) if request.gpus_per_node == 0 else context)
    site = context.site
    shape = decide_shape(request, context)
    check_profile(request, shape.nodes * shape.ranks_per_node)
    command = rank_command(request, context.python if not request.container else request.python or "python")
    binding = _binding(request, context, shape)
    _check_options(request, site)
    before_modules = _facts_before_modules(request, shape, binding, site)
    box = _container(request, context, before_modules, command)
    cache = plan_cache(request, context.cache_roots, context.cache_environments, ahead=context.site.file.login_imports)
    container = with_view(box.plan if box else None, cache)
    modules_use, modules = _modules(request, site, before_modules, box.modules if box else ())
    facts = msgspec.structs.replace(before_modules, modules=modules)
    environment = plan_environment(request, context, shape, binding, facts, box.settings if box else ())
    launch = launch_arguments(request, context, shape, binding, facts, container, environment)
    directives = batch_directives(request, context, shape, binding, facts)
    refuse_forbidden(users_arguments((*directives, *launch)), context.forbidden)
    secrets, trainer = _secrets(request, command, environment), plan_trainer(request, context, shape.scheduler)
    remarks = [*shape.remarks, *context.remarks, *_nested_launcher(command, shape), *(box.remarks if box else ())]
    remarks += [*binding_remarks(binding, context.topology), *plan_remarks(request, context, shape, facts, environment)]
    plan = Plan(
        version=PLAN_VERSION,
        windlass=windlass.__version__,
        **{name: getattr(shape, name) for name in _OF_SHAPE},
        site=site.name,
        world_size=shape.nodes * shape.ranks_per_node,
        request=_masked_request(request),
        command=mask_argv(command),
        interpreter_because=_interpreter_because(request, context),
        secret_words=tuple(secrets.words),
        directives=directives,
        launch=launch,
        modules_use=modules_use,
        modules=modules,
        prologue=_prologue(request, context, facts),
        activate_on_node=request.activate if context.activate_kind == "unseen" else None,
        limits=rank_limits(site, facts),
        environment=environment,
        binding=binding,
        topology=context.topology,
        rendezvous=_rendezvous(request, site),
        container=container,
        caches=caches.cache_dirs(shape.vendor),
        cache_root=site.file.storage.local or "/tmp",
        cache=cache,
        ray=plan_ray(request, context, shape, binding),
        keep_caches=request.keep_caches,
        job_id=context.allocation.job_id if context.allocation else None,
        remarks=worst_first((*remarks, *trainer_remarks(request, trainer))),
        trainer=trainer,
        grace_s=request.grace_s,
        parent=request.supervised or not get_launcher(shape.launcher).names_failed_rank,
    )
    return msgspec.structs.replace(plan, agents=plan_agents(plan)), secrets


def _without_devices(context: PlanningContext) -> PlanningContext:
    """Hide the devices, so that binding, presets and settings are those of a node without devices."""
    bare = msgspec.structs.replace(context.topology, devices=())
    return msgspec.structs.replace(context, topology=bare)


def _nested_launcher(command: tuple[str, ...], shape: Shape) -> tuple[Finding, ...]:
    text = refuse_nested_launcher(command, shape.nodes, shape.ranks_per_node)
    return (Finding("nested-launcher", "warning", text),) if text else ()


def _secrets(request: Request, command: tuple[str, ...], environment: tuple[Setting, ...]) -> Secrets:
    hidden = {setting.name for setting in environment if setting.secret}
    return Secrets(
        words={at: command[at] for at in secret_positions(command)},
        filled_from=request.arguments_at if request.placeholders else None,
        env={name: value for name, value in request.env if name in hidden},
    )


def _interpreter_because(request: Request, context: PlanningContext) -> str:
    if request.kind in {"command", "none"}:
        return ""
    return "the image's own" if request.container and not request.python else context.python_because


def _binding(request: Request, context: PlanningContext, shape: Shape) -> Binding:
    site, topology = context.site, context.topology
    spec = site.file.binding
    if not topology.cores:
        return Binding(
            ranks=tuple(RankBinding(local_rank=i) for i in range(shape.ranks_per_node)),
            because="the node is unknown here: the job reads its own node and binds then",
            by_launcher=False,
        )
    asked = binding_request_from_site(
        spec,
        site.file.devices,
        ranks_per_node=shape.ranks_per_node,
        mode=shape.devices,
        cpu_bind=_cpu_bind(request, site, shape),
        with_agent=needs_agents(request),
    )
    origin = site.origin_of("binding")
    asked = replace(asked, ranks_per_device=request.ranks_per_device, device_unit=request.device_unit, origin=origin)
    if request.gpus_per_node == 0:  # cores that a site sets aside for communication with devices
        asked = replace(asked, comm_cpus=())
    made = bind(topology, asked)
    if asked.agent_cpus and not any(rank.cpus for rank in made.ranks):  # no core is free: agents share the ranks' cores
        made = bind(topology, replace(asked, agent_cpus=()))
    if context.devices_of_node is not None and shape.devices == "all" and not made.visible:
        made = msgspec.structs.replace(made, visible=shape.all_devices)  # the other devices belong to other components
    launcher = get_launcher(shape.launcher)
    if made.variable and not launcher.takes_binding_words:
        raise UsageError(
            f"--cpu-bind {request.cpu_bind} with the {shape.launcher} launcher: it does not accept binding keywords",
            hint="give a list, e.g. 0-3:4-7, or auto",
        )
    if shape.cores_unknown:
        return _left_to_launcher(made)
    by_launcher = launcher.binds_lists and spec.launcher_binds and topology.whole and shape.whole_nodes
    return msgspec.structs.replace(made, by_launcher=by_launcher)


def _cpu_bind(request: Request, site: Site, shape: Shape) -> str:
    """The user's `--cpu-bind`.

    With `auto`, it is the binding of a module that the user named, if the module binds the same number of ranks.
    """
    if request.cpu_bind != "auto" or not get_launcher(shape.launcher).takes_binding_words:
        return request.cpu_bind
    named = {name.split("/", 1)[0] for name in request.modules}
    for spec in site.file.modules:
        binds = spec.cpu_bind and spec.ranks_per_node == shape.ranks_per_node
        if binds and named & {name.split("/", 1)[0] for name in spec.load}:
            return f"env:{spec.cpu_bind}"
    return "auto"


def _left_to_launcher(made: Binding) -> Binding:
    """Leave the binding to the launcher.

    The job has parts of nodes. Each node may have assigned other cores than this one, so one list cannot fit all nodes.
    """
    ranks = tuple(msgspec.structs.replace(rank, cpus=(), nic=None) for rank in made.ranks)
    because = "the job has different cores on each node: the launcher distributes them"
    return msgspec.structs.replace(made, ranks=ranks, because=because, by_launcher=True)


def _facts_before_modules(request: Request, shape: Shape, binding: Binding, site: Site) -> Facts:
    """Facts for conditions before the modules are chosen. The conditions of modules use these facts."""
    image = request.container
    return Facts(
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        scheduler=shape.scheduler,
        launcher=shape.launcher,
        container=image is not None,
        runtime=runtime_name(image, request.runtime, site.file.containers) if image is not None else "none",
        devices=shape.devices,
        device_unit=shape.device_unit,
        preset=binding.preset,
        options=frozenset(request.options),
    )


def _check_options(request: Request, site: Site) -> None:
    """Raise `UsageError` for an option that the site does not have, because ignoring it would hide a mistake."""
    known = {s.when.option for s in site.file.settings} | {a.when.option for a in site.file.scheduler.directives}
    known |= {a.when.option for a in site.file.launcher.arguments} | {m.when.option for m in site.file.modules}
    names = sorted(name for name in known if name)
    for option in request.options:
        if option not in (*names, INDEPENDENT, RAY, RESUME):
            raise UsageError(
                f"--with {option}: {site.name} has no option of this name",
                hint=f"it has: {', '.join((*names, INDEPENDENT, RAY, RESUME))}",
            )


def _container(
    request: Request, context: PlanningContext, facts: Facts, command: tuple[str, ...]
) -> ContainerChoice | None:
    if request.container is None:
        return None
    asked = container_request(request, request.container, command)
    return plan_container(asked, container_site(context.site), facts, context.seen_paths)


def _modules(
    request: Request, site: Site, facts: Facts, container_modules: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if request.no_modules:
        return (), request.modules
    specs: list[ModuleSpec] = [m for m in site.file.modules if holds(m.when, facts) and m.default]
    wanted = {name.split("/", 1)[0] for name in request.modules}
    use = tuple(path for spec in specs for path in spec.use)
    load = tuple(
        name
        for name in (*(n for spec in specs for n in spec.load), *container_modules)
        if name.split("/", 1)[0] not in wanted
    )
    extra_use = tuple(
        path
        for spec in site.file.modules
        if not spec.default and {n.split("/", 1)[0] for n in spec.load} & wanted
        for path in spec.use
    )
    return tuple(dict.fromkeys((*use, *extra_use))), tuple(dict.fromkeys((*load, *request.modules)))


def _prologue(request: Request, context: PlanningContext, facts: Facts) -> tuple[Prologue, ...]:
    lines = [
        Prologue(line=spec.line, because=spec.because, origin=spec.origin or BUILTIN)
        for spec in context.site.file.prologue
        if holds(spec.when, facts)
    ]
    if request.activate and context.activate_kind:
        lines += [
            Prologue(line=line, because="requested by you", origin=Origin(scope="flag", where="--activate"))
            for line in activation_lines(request.activate, context.activate_kind)
        ]
    return tuple(lines)


def _rendezvous(request: Request, site: Site) -> Rendezvous:
    spec = site.file.rendezvous
    return Rendezvous(
        suffix=spec.suffix,
        short_name=spec.short_name,
        address=spec.address,
        interface=spec.interface,
        port_base=spec.port_base,
        port_span=spec.port_span,
        fixed_port=request.master_port,
        because="the first host, by its name on the fabric" if spec.suffix else "the first host",
        origin=site.origin_of("rendezvous"),
    )


def _masked_request(request: Request) -> Request:
    """The request without secrets in the command, in --env or in arguments for launcher and scheduler."""
    env = tuple((name, MASK if is_secret(name, value) else value) for name, value in request.env)
    return msgspec.structs.replace(
        request,
        command=mask_argv(request.command),
        env=env,
        directives=mask_argv(request.directives),
        launcher_args=mask_argv(request.launcher_args),
        container_args=mask_argv(request.container_args),
    )
