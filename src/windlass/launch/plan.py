"""Planning: request + site + topology + allocation, decided. Pure: the same inputs give the same plan anywhere.

Reads top to bottom: what runs where (`_shape`), where each rank sits (`_binding`), what surrounds the command
(container, environment), and the words for launcher and scheduler. Every decision carries its reason.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

import windlass
from windlass.containers import get_runtime
from windlass.containers.base import WrapSpec
from windlass.containers.choose import plan_container
from windlass.environment import caches, choose, ranks
from windlass.environment.modules import activation_lines
from windlass.errors import UsageError
from windlass.launch.cached import plan_cache, with_view
from windlass.launch.command import rank_command, refuse_nested_launcher
from windlass.launch.shape import Shape, decide_shape
from windlass.launch.words import edit_arguments
from windlass.launchers import get_launcher
from windlass.launchers.base import LaunchSpec
from windlass.model.condition import Facts, holds
from windlass.model.origin import BUILTIN, Argument, Origin
from windlass.model.plan import (
    PLAN_VERSION,
    Binding,
    ContainerPlan,
    Plan,
    Prologue,
    RankBinding,
    Remark,
    Rendezvous,
    Setting,
)
from windlass.model.request import Allocation, Request
from windlass.model.secrets import mask_word, secret_positions
from windlass.model.shell import NAME
from windlass.model.site import ArgumentSpec, ModuleSpec, Site
from windlass.model.topology import Topology
from windlass.schedulers import get_scheduler
from windlass.schedulers.base import JobSpec
from windlass.topology.bind import bind
from windlass.topology.wish import wish_from_site

_CHOOSE_DEVICES = frozenset({"srun", "flux"})
"""Launchers that can hand each rank the device closest to its cores."""


_PERSONAL = frozenset(
    {"_", "PWD", "OLDPWD", "SHLVL", "TERM", "DISPLAY", "LS_COLORS", "HOSTNAME", "SSH_AUTH_SOCK", "MAIL"}
)
"""Variables of a login shell that mean nothing on another node."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What planning needs to know beside the request; gathered at the edge."""

    site: Site
    topology: Topology
    allocation: Allocation | None = None
    environ: Mapping[str, str] = {}
    """The environment of the machine that will run, for `${NAME}` in paths; used only with `check_paths`."""
    users_environment: Mapping[str, str] = {}
    """Variables that are the user's own will (see environment.modules.users_variables)."""
    python: str = "python3"
    python_because: str = "found first in PATH"
    activate_kind: str | None = None
    """`venv` or `conda`, where the request says --activate."""
    run_dir: str = "RUN_DIR"
    """Path of the run folder, where it is known already (a submission names its log there)."""
    cache_roots: tuple[tuple[str, str], ...] = ()
    """Roots of --cache as they were said and with links followed, where they could be looked at."""
    cache_environments: tuple[str, ...] = ()
    """Prefixes of environments that the ranks may use."""
    bad_hosts: tuple[str, ...] = ()
    """Nodes of this site that failed lately (see launch.badnodes)."""
    check_paths: bool = False
    """True on the machine that will run: paths of images and binds can be looked at."""


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan hides: words of the command by position, variables by name. For a 0600 file."""

    words: dict[int, str] = {}
    env: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.words or self.env)


def make_plan(request: Request, context: Context) -> tuple[Plan, Secrets]:
    """Decide everything. Raises `UsageError` for a request that cannot be, before anything has been started."""
    site = context.site
    shape = decide_shape(request, site, context.topology, context.allocation, context.bad_hosts)
    python = context.python if not request.container else request.python or "python"
    command = rank_command(request, python)
    remarks = list(shape.remarks)
    nested = refuse_nested_launcher(command, shape.ranks_per_node)
    if nested:
        remarks.append(Remark(level="warning", text=nested))

    binding = _binding(request, site, context.topology, shape)
    facts = _facts(request, shape, binding, site)
    _check_options(request, site)
    container, container_settings, container_modules, container_remarks = _container(request, context, facts, command)
    remarks += container_remarks
    cache = plan_cache(request, shape, context.cache_roots, context.cache_environments)
    container = with_view(container, cache)
    if container:
        facts = msgspec.structs.replace(facts, container=True, runtime=container.runtime)
    modules_use, modules = _modules(request, site, facts, container_modules)
    facts = msgspec.structs.replace(facts, modules=modules)

    environment = _environment(request, context, shape, binding, facts, container_settings)
    launcher = get_launcher(shape.launcher)
    launch = _launch_arguments(request, context, shape, binding, facts, container, environment)
    secret_words = secret_positions(command)
    secrets = Secrets(
        words={at: command[at] for at in secret_words},
        env={name: value for name, value in request.env if any(s.name == name and s.secret for s in environment)},
    )
    remarks += _remarks(request, site, shape, facts, environment)
    plan = Plan(
        version=PLAN_VERSION,
        windlass=windlass.__version__,
        name=shape.name,
        site=site.name,
        partition=shape.partition,
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        world_size=shape.nodes * shape.ranks_per_node,
        scheduler=shape.scheduler,
        launcher=shape.launcher,
        request=_masked_request(request),
        command=tuple(mask_word(w) if at in secret_words else w for at, w in enumerate(command)),
        interpreter_because=_interpreter_because(request, context),
        secret_words=secret_words,
        directives=_directives(request, context, shape, binding, facts),
        launch=launch,
        modules_use=modules_use,
        modules=modules,
        prologue=_prologue(request, context, facts),
        limits=_limits(site, facts),
        environment=environment,
        binding=binding,
        topology=context.topology,
        rendezvous=_rendezvous(request, site),
        container=container,
        caches=caches.cache_dirs(shape.vendor),
        cache_root=site.file.storage.local or "/tmp",
        cache=cache,
        keep_caches=request.keep_caches,
        hosts=shape.hosts,
        job_id=context.allocation.job_id if context.allocation else None,
        remarks=tuple(remarks),
        grace_s=request.grace_s,
        parent=request.supervised or not launcher.names_failed_rank,
    )
    return plan, secrets


def _interpreter_because(request: Request, context: Context) -> str:
    if request.kind == "command":
        return ""
    return "the image's own" if request.container and not request.python else context.python_because


def _binding(request: Request, site: Site, topology: Topology, shape: Shape) -> Binding:
    spec = site.file.binding
    if not topology.cores:
        return Binding(
            ranks=tuple(RankBinding(local_rank=i) for i in range(shape.ranks_per_node)),
            because="the node is not known here: the job looks at its own node and binds then",
            by_launcher=False,
        )
    wish = wish_from_site(
        spec,
        site.file.devices,
        ranks_per_node=shape.ranks_per_node,
        ranks_per_device=request.ranks_per_device,
        mode=shape.devices,
        unit=request.device_unit,
        cpu_bind=request.cpu_bind,
        with_agent=bool(request.cache),
        origin=site.origin_of("binding"),
    )
    made = bind(topology, wish)
    launcher = get_launcher(shape.launcher)
    if not shape.whole_nodes and shape.nodes > 1:
        return _left_to_launcher(made)
    by_launcher = launcher.binds_lists and spec.launcher_binds and topology.whole and shape.whole_nodes
    return msgspec.structs.replace(made, by_launcher=by_launcher)


def _left_to_launcher(made: Binding) -> Binding:
    """Parts of several nodes: each node may have given us other cores, so one list cannot fit them all."""
    ranks = tuple(msgspec.structs.replace(rank, cpus=(), nic=None) for rank in made.ranks)
    because = "the job has parts of its nodes, not the same cores on each: the launcher divides what there is"
    return msgspec.structs.replace(made, ranks=ranks, because=because, by_launcher=True)


def _facts(request: Request, shape: Shape, binding: Binding, site: Site) -> Facts:
    return Facts(
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        scheduler=shape.scheduler,
        launcher=shape.launcher,
        container=request.container is not None,
        devices=shape.devices,
        device_unit=shape.device_unit,
        preset=binding.preset,
        options=frozenset(request.options),
    )


def _check_options(request: Request, site: Site) -> None:
    """A remedy that the site does not have is a mistake, not something to pass over in silence."""
    known = {s.when.option for s in site.file.settings} | {a.when.option for a in site.file.scheduler.directives}
    known |= {a.when.option for a in site.file.launcher.arguments} | {m.when.option for m in site.file.modules}
    names = sorted(name for name in known if name)
    for option in request.options:
        if option not in names:
            raise UsageError(
                f"--with {option}: {site.name} has no option of this name",
                hint=f"it has: {', '.join(names)}" if names else "this site has none",
            )


def _container(
    request: Request, context: Context, facts: Facts, command: tuple[str, ...]
) -> tuple[ContainerPlan | None, tuple[Setting, ...], tuple[str, ...], tuple[Remark, ...]]:
    if request.container is None:
        return None, (), (), ()
    choice = plan_container(
        image=request.container,
        runtime=request.runtime,
        binds=request.binds,
        extra_arguments=request.container_args,
        cwd=request.cwd,
        specs=context.site.file.containers,
        storage=context.site.file.storage,
        facts=facts,
        check_paths=context.check_paths,
        needs=_needed_paths(request),
        command=command,
        environ=context.environ if context.check_paths else None,
    )
    holding = choose.settings_that_hold(
        choice.settings, msgspec.structs.replace(facts, container=True, runtime=choice.plan.runtime)
    )
    return choice.plan, holding, choice.modules, choice.remarks


def _needed_paths(request: Request) -> tuple[tuple[str, str], ...]:
    """Folders outside of the working folder that the command names by itself."""
    needs: list[tuple[str, str]] = []
    if request.kind == "script" and request.command[0].startswith("/"):
        needs.append((request.command[0].rpartition("/")[0] or "/", "the script's folder"))
    if request.activate:
        needs.append((request.activate, "the environment that --activate names"))
    inside = request.cwd.rstrip("/") + "/"
    return tuple((path, because) for path, because in needs if not f"{path}/".startswith(inside))


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


def _environment(
    request: Request,
    context: Context,
    shape: Shape,
    binding: Binding,
    facts: Facts,
    container_settings: tuple[Setting, ...],
) -> tuple[Setting, ...]:
    site = context.site
    builtin: list[Setting] = [
        Setting(name="PYTHONUNBUFFERED", value="1", because="a rank's output is seen when it is written"),
        *ranks.thread_settings(binding, context.topology, request.threads),
        *caches.cache_settings(caches.cache_dirs(shape.vendor)),
        *caches.download_settings(site),
        *_visibility(site, shape, binding, context.topology),
        *_offline(site),
    ]
    if shape.scheduler == "none" and shape.nodes == 1:
        builtin.append(
            Setting(
                name="GLOO_SOCKET_IFNAME",
                value="lo",
                because="one machine: gloo would otherwise look up the host name, which may not resolve",
            )
        )
    if shape.launcher == "srun" and shape.cpus_per_rank(binding):
        builtin.append(
            Setting(
                name="SRUN_CPUS_PER_TASK",
                value=str(shape.cpus_per_rank(binding)),
                because="since Slurm 22.05 an srun inside the job does not inherit --cpus-per-task",
            )
        )
    if request.comm_log is not None:
        builtin += _comm_log(shape)
    preset = next((p for p in site.file.binding.presets if p.name == binding.preset), None)
    groups = (
        tuple(builtin),
        choose.settings_that_hold(site.file.settings, facts),
        choose.settings_that_hold(preset.settings, facts) if preset else (),
        container_settings,
    )
    chosen = choose.with_users_values(choose.layer(*groups), context.users_environment)
    return choose.layer(chosen, choose.flag_settings(request.env, request.unset))


def _visibility(site: Site, shape: Shape, binding: Binding, topology: Topology) -> tuple[Setting, ...]:
    made = ranks.visibility_settings(
        binding,
        shape.visibility,
        shape.devices,
        by_launcher=site.file.devices.by_launcher and shape.launcher in _CHOOSE_DEVICES,
        all_devices=shape.all_devices,
    )
    origin = site.origin_of("devices.visibility")
    return tuple(msgspec.structs.replace(setting, origin=origin) for setting in made)


def _offline(site: Site) -> tuple[Setting, ...]:
    if not site.file.offline:
        return ()
    because = "compute nodes of this site cannot reach the internet: say so at once instead of waiting for time-outs"
    origin = site.origin_of("offline")
    return tuple(
        Setting(name=name, value=value, because=because, origin=origin)
        for name, value in (("HF_HUB_OFFLINE", "1"), ("WANDB_MODE", "offline"))
    )


def _comm_log(shape: Shape) -> list[Setting]:
    """The collective library's log of the chosen ranks, into files of the run folder."""
    because = "you asked for the collective library's log (--comm-log)"
    flag = Origin(scope="flag", where="--comm-log")
    if shape.vendor == "intel":
        pairs = [("CCL_LOG_LEVEL", "info"), ("FI_LOG_LEVEL", "warn")]
    elif shape.vendor in {"nvidia", "amd"}:
        pairs = [
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV,GRAPH"),
            ("NCCL_DEBUG_FILE", "${WINDLASS_RUN_DIR}/comm/rank-{rank}.log"),
        ]
    else:
        pairs = [("TORCH_CPP_LOG_LEVEL", "INFO")]  # TORCH_DISTRIBUTED_DEBUG on some ranks only would hang them all
    return [Setting(name=n, value=v, because=because, origin=flag, expand=True, keep_user=False) for n, v in pairs]


def _launch_arguments(
    request: Request,
    context: Context,
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
        cpus_per_rank=_step_cpus(shape, binding, context.topology),
        overcommit=_overcommitted(shape, context),
        unbound=request.cpu_bind == "none" or (bound and not binding.by_launcher),
        gpus_per_node=shape.gpus_per_node,
        gpu_request=site.file.scheduler.gpu_request,
        devices=shape.devices,
        device_by_launcher=site.file.devices.by_launcher,
        mpi=request.mpi or site.file.launcher.mpi,
        host_file="{run_dir}/hosts" if shape.hosts else None,
        host_list=shape.hosts if shape.part_of_allocation else None,
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


def _travelling(context: Context) -> tuple[str, ...]:
    """Names for launchers that carry only what is named: what programs are found by, and the user's own."""
    always = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
    if context.allocation is None:
        return always
    own = (name for name in context.users_environment if NAME.match(name) and name not in _PERSONAL)
    return tuple(dict.fromkeys((*always, *sorted(own))))


def _overcommitted(shape: Shape, context: Context) -> bool:
    """More ranks than CPUs: a wish that schedulers take for a mistake unless told."""
    cpus = len([cpu for core in context.topology.usable_cores() for cpu in core.cpus])
    if not cpus and context.allocation:
        cpus = context.allocation.cpus_per_node or 0
    return 0 < cpus < shape.ranks_per_node


def _step_cpus(shape: Shape, binding: Binding, topology: Topology) -> int | None:
    """What to say as CPUs per task. srun makes a step of just that size and then refuses masks outside of it, so with
    masks it is said only where the ranks together use the whole node."""
    each = shape.cpus_per_rank(binding)
    if each is None or not binding.by_launcher:
        return each
    bound = {cpu for rank in binding.ranks for cpu in rank.cpus}
    blocked = {*topology.reserved, *binding.agent_cpus, *binding.comm_cpus}
    usable = [core for core in topology.usable_cores() if not set(core.cpus) & blocked]
    whole = all(core.id in bound for core in usable)
    return each if whole and each * shape.ranks_per_node == len(bound) else None


def _argument(spec: ArgumentSpec) -> Argument:
    return Argument(words=spec.words, because=spec.because, origin=spec.origin or BUILTIN)


def _directives(
    request: Request, context: Context, shape: Shape, binding: Binding, facts: Facts
) -> tuple[Argument, ...]:
    if shape.scheduler == "none":
        return ()
    site = context.site
    scheduler = get_scheduler(shape.scheduler)
    spec = JobSpec(
        name=shape.name,
        nodes=shape.nodes + request.spares,
        ranks_per_node=shape.ranks_per_node,
        cpus_per_rank=None if site.file.scheduler.whole_nodes else shape.cpus_per_rank(binding),
        gpus_per_node=shape.gpus_per_node,
        partition=shape.partition,
        qos=request.qos,
        account=request.account,
        time=request.time,
        output=f"{scheduler.path_word(context.run_dir)}/job.log",
        exclude_hosts=context.bad_hosts if scheduler.can_exclude else (),
        outlives_nodes=bool(request.spares),
    )
    mine = tuple(a for a in site.file.scheduler.directives if holds(a.when, facts))
    made = scheduler.directives(spec, msgspec.structs.replace(site.file.scheduler, directives=mine))
    return edit_arguments(made, request.directives, flag="--directive")


def _prologue(request: Request, context: Context, facts: Facts) -> tuple[Prologue, ...]:
    lines = [
        Prologue(line=spec.line, because=spec.because, origin=spec.origin or BUILTIN)
        for spec in context.site.file.prologue
        if holds(spec.when, facts)
    ]
    if request.activate and context.activate_kind:
        lines += [
            Prologue(line=line, because="you asked for it", origin=Origin(scope="flag", where="--activate"))
            for line in activation_lines(request.activate, context.activate_kind)
        ]
    return tuple(lines)


def _limits(site: Site, facts: Facts) -> tuple[Argument, ...]:
    core = Argument(words=("-c", "0"), because="thousands of core files fill a file system and help nobody")
    own = tuple(_argument(a) for a in site.file.limits if holds(a.when, facts))
    return own if any(a.words[:1] == ("-c",) for a in own) else (core, *own)


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


def _remarks(
    request: Request, site: Site, shape: Shape, facts: Facts, environment: tuple[Setting, ...]
) -> list[Remark]:
    out: list[Remark] = []
    if site.file.status:
        out.append(Remark(level="note", text=f"{site.name}: {site.file.status}"))
    monitor = next((s for s in environment if s.name == "FI_MR_CACHE_MONITOR"), None)
    if monitor and monitor.value == "memhooks":
        out.append(
            Remark(
                level="warning",
                text="FI_MR_CACHE_MONITOR=memhooks is known to hang NCCL and RCCL",
                hint="unset it, or use userfaultfd",
            )
        )
    unconfirmed = [s.name for s in environment if s.origin.grade in {"unconfirmed", "community"}]
    if unconfirmed:
        out.append(Remark(level="note", text=f"not confirmed by the site or vendor: {', '.join(unconfirmed)}"))
    return out


def _masked_request(request: Request) -> Request:
    """The request as the plan may show it: no secret in the command, in --env or in arguments for others."""

    def masked(words: tuple[str, ...]) -> tuple[str, ...]:
        hide = set(secret_positions(words))
        return tuple(mask_word(w) if at in hide else w for at, w in enumerate(words))

    env = tuple((name, masked((f"{name}={value}",))[0].partition("=")[2]) for name, value in request.env)
    return msgspec.structs.replace(
        request,
        command=masked(request.command),
        env=env,
        directives=masked(request.directives),
        launcher_args=masked(request.launcher_args),
        container_args=masked(request.container_args),
    )
