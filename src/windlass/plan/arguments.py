"""Arguments of a plan: the launcher's argv, the directives of a batch script, limits. Pure.

Also applies the user's edits to a command line with defaults: add arguments, replace an option, or remove a default
with `~`.
"""

from __future__ import annotations

import msgspec

from windlass.backends.containers import get_runtime
from windlass.backends.containers.base import WrapSpec
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import LaunchSpec
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobSpec
from windlass.base.notation.shell import NAME
from windlass.errors import UsageError, nearest
from windlass.model.condition import Facts, holds
from windlass.model.origin import BUILTIN, Argument, ArgumentSpec, Origin, argument_key
from windlass.model.plan import Binding, ContainerPlan, Setting
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.model.topology import Topology
from windlass.plan.environment import ranks
from windlass.plan.inputs import PlanningContext
from windlass.plan.queues import queue_gpus
from windlass.plan.shape import Shape


def edit_arguments(defaults: tuple[Argument, ...], edits: tuple[str, ...], *, flag: str) -> tuple[Argument, ...]:
    """Return `defaults` after the user's edits.

    `~--name` removes a default and raises `UsageError` if no default has this name. An option that already exists is
    replaced at the same position. All other arguments are appended.
    """
    out = list(defaults)
    origin = Origin(scope="flag", where=flag)
    for edit in edits:
        if edit.startswith("~"):
            _remove(out, edit[1:].strip(), flag)
            continue
        words = _words(edit, flag)
        made = Argument(words=words, because="requested by you", origin=origin)
        key = argument_key(words)
        for index, old in enumerate(out):
            if argument_key(old.words) == key and _is_option(old):
                out[index] = made
                break
        else:
            out.append(made)
    return tuple(out)


def _words(edit: str, flag: str) -> tuple[str, ...]:
    """Split an edit into arguments.

    `-l filesystems=home:flare` is two arguments. `--comment=two words` and everything that is not an option is one.
    """
    if not edit.strip():
        raise UsageError(f"{flag} has an empty value", hint="write --name=value or '-x value'")
    if flag == "--directive" and "\n" in edit:
        raise UsageError(f"--directive {edit!r} has a line break", hint="write each directive on one line")
    head, space, tail = edit.partition(" ")
    if space and head.startswith("-") and "=" not in head:
        return (head, tail.strip())
    return (edit,)


def _is_option(argument: Argument) -> bool:
    """Whether this is an option. The program at the start of a command line cannot be replaced or removed."""
    return argument.words[0].startswith("-")


def _remove(out: list[Argument], name: str, flag: str) -> None:
    matching = [a for a in out if _is_option(a) and name in {argument_key(a.words), a.name}]
    if not matching:
        known = [argument_key(a.words) for a in out if _is_option(a)]
        close = nearest(name, known)
        raise UsageError(
            f"{flag} ~{name}: no default of this name to remove",
            hint=(f"did you mean ~{close}? " if close else "") + f"there are: {', '.join(known)}",
        )
    for argument in matching:
        out.remove(argument)


_PERSONAL = frozenset(
    {"_", "PWD", "OLDPWD", "SHLVL", "TERM", "DISPLAY", "LS_COLORS", "HOSTNAME", "SSH_AUTH_SOCK", "MAIL"}
)
"""Variables of a login shell that have no meaning on another node."""


def launch_arguments(
    request: Request,
    context: PlanningContext,
    shape: Shape,
    binding: Binding,
    facts: Facts,
    container: ContainerPlan | None,
    environment: tuple[Setting, ...],
) -> tuple[Argument, ...]:
    site = context.site
    launcher = get_launcher(shape.launcher)
    bound = any(rank.cpus for rank in binding.ranks)
    spec = LaunchSpec(
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        cpu_lists=tuple(rank.cpus for rank in binding.ranks) if bound and binding.by_launcher else (),
        cpu_bind_variable=binding.variable,
        cpus_per_rank=None if binding.variable else _step_cpus(shape, binding, context.topology),
        next_to_others=bool(context.component),
        cores_per_node=_share(context),
        overcommit=_overcommitted(shape, context),
        overlap=context.allocation is not None and context.allocation.step_tasks is not None,
        unbound=request.cpu_bind == "none" or (bound and not binding.by_launcher),
        gpus_per_node=shape.gpus_per_node,
        gpus_of_node=context.devices_of_node,
        gpu_type=request.gpu_type,
        gpu_request=site.file.scheduler.gpu_request,
        devices=shape.devices,
        device_by_launcher=site.file.devices.by_launcher,
        mpi=request.mpi or site.file.launcher.mpi,
        host_file="{run_dir}/hosts" if shape.hosts or _host_file_in_job(context, shape) else None,
        host_list=shape.hosts if shape.part_of_allocation or context.component else None,
        output_dir="{run_dir}/out",
        step_name=shape.name,
        environment_names=_travelling(context),
    )
    mine = tuple(a for a in site.file.launcher.arguments if holds(a.when, facts))
    made = list(launcher.arguments(spec, msgspec.structs.replace(site.file.launcher, arguments=mine)))
    if container:
        runtime = get_runtime(container.runtime)
        wrap = WrapSpec(
            container=container,
            cwd=request.cwd,
            run_dir="{run_dir}",
            vendor=shape.vendor,
            settings=environment,
            rank_variables=ranks.rank_variable_names(),
        )
        made += runtime.launcher_arguments(wrap)
    return edit_arguments(tuple(made), request.launcher_args, flag="--arg")


def _share(context: PlanningContext) -> int | None:
    """The number of cores that a component may use on each node. None: the whole node."""
    return len(context.topology.usable_cores()) if context.devices_of_node is not None else None


def _host_file_in_job(context: PlanningContext, shape: Shape) -> bool:
    """Whether the batch script writes the host file, because the launcher does not find the hosts itself."""
    return context.allocation is None and shape.nodes > 1 and not get_launcher(shape.launcher).finds_hosts


def _travelling(context: PlanningContext) -> tuple[str, ...]:
    """Variables for launchers that carry only named variables: search paths and the user's own variables."""
    always = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
    if context.allocation is None:
        return always
    own = (name for name in context.users_environment if NAME.match(name) and name not in _PERSONAL)
    return tuple(dict.fromkeys((*always, *sorted(own))))


def _overcommitted(shape: Shape, context: PlanningContext) -> bool:
    """Whether there are more ranks than CPUs. Schedulers reject this unless the request says that it is intended."""
    cpus = len([cpu for core in context.topology.usable_cores() for cpu in core.cpus])
    if not cpus and context.allocation:
        cpus = context.allocation.cpus_per_node or 0
    return 0 < cpus < shape.ranks_per_node


def _step_cpus(shape: Shape, binding: Binding, topology: Topology) -> int | None:
    """CPUs per task to request, or None.

    srun creates a step of exactly this size and refuses masks outside of it. With masks, the number is therefore given
    only if the ranks together use the whole node.
    """
    each = shape.cpus_per_rank(binding)
    if each is None or not binding.by_launcher:
        return each
    bound = {cpu for rank in binding.ranks for cpu in rank.cpus}
    if not bound:
        return each
    blocked = {*topology.reserved, *binding.agent_cpus, *binding.comm_cpus}
    usable = [core for core in topology.usable_cores() if not set(core.cpus) & blocked]
    whole = all(core.id in bound for core in usable)
    return each if whole and each * shape.ranks_per_node == len(bound) else None


def _argument(spec: ArgumentSpec) -> Argument:
    return Argument(words=spec.words, because=spec.because, origin=spec.origin or BUILTIN)


def batch_directives(
    request: Request, context: PlanningContext, shape: Shape, binding: Binding, facts: Facts
) -> tuple[Argument, ...]:
    if shape.scheduler == "none":
        return ()
    site = context.site
    scheduler = get_scheduler(shape.scheduler)
    gpus = queue_gpus(site, shape.partition, shape.gpus_per_node)
    spec = JobSpec(
        name=shape.name,
        nodes=shape.nodes + request.spares,
        ranks_per_node=shape.ranks_per_node,
        cpus_per_rank=None if site.file.scheduler.whole_nodes else shape.cpus_per_rank(binding),
        gpus_per_node=shape.gpus_per_node,
        gpu_type=request.gpu_type,
        gpu_chunks=gpus,
        partition=shape.partition,
        qos=shape.qos,
        account=request.account,
        time=request.time,
        output="{run_dir}/job.log",
        exclude_hosts=context.bad_hosts if scheduler.can_exclude else (),
        outlives_nodes=bool(request.spares),
        requeue=request.until_done,
    )
    mine = tuple(a for a in site.file.scheduler.directives if holds(a.when, facts))
    made = scheduler.directives(spec, msgspec.structs.replace(site.file.scheduler, directives=mine))
    return edit_arguments(made, request.directives, flag="--directive")


def rank_limits(site: Site, facts: Facts) -> tuple[Argument, ...]:
    core = Argument(words=("-c", "0"), because="thousands of core files would fill the file system")
    own = tuple(_argument(a) for a in site.file.limits if holds(a.when, facts))
    return own if any(a.words[:1] == ("-c",) for a in own) else (core, *own)
