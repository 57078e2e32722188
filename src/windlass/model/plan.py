"""The plan: all decisions, each with its reason and its source, and without secrets.

A plan is the same value whether windlass shows it (`windlass plan`), saves it (`plan.json`), writes a batch script from
it or runs it. It can be created on any machine. For facts that only the job has (host names, job id, a free port), the
plan contains rules.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from windlass.base.notation.shell import NAME
from windlass.errors import ConfigError, VersionError
from windlass.model.condition import ALWAYS, When
from windlass.model.finding import Finding, PlanRemark
from windlass.model.jsontext import Versioned, from_json, to_json
from windlass.model.origin import BUILTIN, Argument, Origin
from windlass.model.request import Request
from windlass.model.site import SettingSpec
from windlass.model.topology import DeviceUnit, Topology

PLAN_VERSION = 3
"""Version 1 (windlass 0.1.0) has no agents: `read_plan` creates them from its request. Remarks of versions 1 and 2 have
no kind: `plan_from_json` reads them as findings."""
_FINDINGS_SINCE = 3
_AGAIN = "create it again with `windlass plan --json`"
_MAX_NODES, _MAX_RANKS_PER_NODE = 200_000, 4096


class Setting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One environment variable of the ranks. `value` None unsets it. The value of a secret is in a separate file."""

    name: str
    value: str | None
    because: str
    origin: Origin = BUILTIN
    when: When = ALWAYS
    """Contains only the tests that the compute node decides."""
    expand: bool = False
    fill: bool = False
    """`{rank}` and the like are filled in, as in arguments. Nothing else is expanded."""
    prepend: bool = False
    """The value is put in front of the variable's existing value, as an element of a path."""
    append: bool = False
    """The value is put after the variable's existing value."""
    inside: bool = True
    """False: only for the host side of a container."""
    secret: bool = False
    keep_user: bool = True
    """A value that the user set in the environment before the modules takes precedence over this one."""
    module: str = ""
    """A module of the plan whose value takes precedence. This value applies if the module does not set the variable."""
    note: str = ""

    @property
    def joins(self) -> bool:
        """Whether it adds to the variable's value and does not replace it."""
        return self.prepend or self.append


def setting_of(spec: SettingSpec) -> Setting:
    """Convert a catalog setting to a setting of a plan. Keeps only the tests that the node decides."""
    left = ALWAYS
    if spec.when.at_run_time:
        left = When(exists=spec.when.exists, found=spec.when.found, found_in=spec.when.found_in)
    return Setting(
        name=spec.name,
        value=spec.value,
        because=spec.because,
        origin=spec.origin or Origin(scope="site", where=spec.source),
        when=left,
        expand=spec.expand,
        prepend=spec.prepend,
        append=spec.append,
        note=spec.note,
    )


class RankBinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The placement of one local rank. Empty `cpus`: not bound."""

    local_rank: int
    cpus: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    """Physical devices of this rank (one, or a share of one)."""
    numa: tuple[int, ...] = ()
    nic: str | None = None


class Binding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The map of a node: ranks to CPUs, devices and interfaces."""

    ranks: tuple[RankBinding, ...]
    because: str
    origin: Origin = BUILTIN
    preset: str | None = None
    visible: tuple[int, ...] = ()
    """Order of the devices that every rank sees (`--devices all`). Empty: all are visible in their own order."""
    agent_cpus: tuple[int, ...] = ()
    comm_cpus: tuple[int, ...] = ()
    by_launcher: bool = True
    """The launcher's options bind the ranks. Otherwise the rank script binds them with taskset."""
    variable: str | None = None
    """The launcher binds by the value of this variable (set by a module). The plan does not contain the value."""
    device_unit: DeviceUnit | None = None
    """The unit of the device numbers here, if it differs from the topology's."""


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How ranks find each other. This is a rule, because only the job has the host names."""

    suffix: str = ""
    short_name: bool = True
    address: Literal["host", "ip"] = "host"
    interface: str | None = None
    port_base: int = 20000
    port_span: int = 12000
    fixed_port: int | None = None
    because: str = ""
    origin: Origin = BUILTIN


class Mount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    source: str
    target: str
    because: str
    origin: Origin = BUILTIN
    read_only: bool = False
    optional: bool = False
    follow: bool = False


class HostLibs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Network libraries of the host that each node collects in a folder of the job for the container (host-inject)."""

    names: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    provider: str = ""
    own: str = ""
    """A folder that the user named. Every network library in it is used."""
    because: str = ""
    origin: Origin = BUILTIN


class ContainerPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The container around the user's command."""

    runtime: str
    image: str
    executable: str
    verb: str = "exec"
    arguments: tuple[Argument, ...] = ()
    mounts: tuple[Mount, ...] = ()
    settings: tuple[Setting, ...] = ()
    """Variables only for the inside, which the host must not see: search paths of libraries and programs, preloads."""
    device_flag: bool = True
    """Pass the runtime's own device option (`--nv`, `--rocm`)."""
    activate: str = ""
    annotations: dict[str, str] = {}
    host_libs: HostLibs | None = None
    note: str = ""


class CacheDir(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node-local folder for a just-in-time or download cache, and the variables that point to it."""

    name: str
    subdir: str
    variables: tuple[str, ...]
    because: str
    keep: bool = True
    """Saved and restored between jobs with --keep-caches."""


class CacheRoot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A folder that the cooperative cache shows: the path as the user wrote it, and the path with links resolved."""

    path: str
    real: str


class CachePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cooperative cache of a run: an agent on every node, whose mount shows `roots` below one folder."""

    roots: tuple[CacheRoot, ...]
    environments: tuple[str, ...] = ()
    """Prefixes below the roots whose `bin` contains scripts that name their interpreter by its absolute path."""
    variables: tuple[str, ...] = ()
    """Variables in which the node replaces paths below the roots by their paths in the view."""
    placement: Literal["replicate", "partition"] = "replicate"
    budget_bytes: int = 2 << 30
    readers: int = 1
    store: str = ""
    """Folder of each node for the cache. Empty: the cache is in the node's memory."""
    allow_other: bool = False
    trace: bool = True
    """Record the files that the run reads. From the second run on, push them to the nodes ahead of the ranks."""
    ahead: bool = True
    """`windlass submit` records the imports of the script on the login node if there is no trace yet."""
    ready_s: float = 60.0
    """How long the nodes may take to become ready before the run is abandoned."""
    because: str = ""
    origin: Origin = BUILTIN


AgentService = Literal["cache", "heartbeat", "mps", "sampler", "stage"]


class RestartPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How ranks start again after a failure on the same nodes."""

    in_place: bool
    """The launcher's step stays, and its rank scripts start the ranks again."""
    because: str
    standby: bool = False
    """One process per node imports the modules of the ranks and forks into the new ranks."""
    standby_because: str = ""
    options: int = 0
    """Number of words between the interpreter and the script in the command."""


class AgentsPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agents of a run: one small process on every node next to the ranks, which hosts these services."""

    services: tuple[AgentService, ...]
    launch: tuple[Argument, ...] = ()
    """The node step that starts them, without the program. Empty if windlass starts the only agent itself."""
    cpus: tuple[int, ...] = ()
    """CPUs of each node on which they run. Empty: any CPU."""
    cpus_because: str = ""
    interpreter: str = ""
    ready_s: float
    """How long the nodes may take to become ready."""
    because: str
    origin: Origin = BUILTIN
    restart: RestartPlan | None = None


ResumeWay = Literal["itself", "argument", "possible", "never"]
"""`argument`: windlass adds it on each restart. `possible`: it would with `--with resume`."""


class TrainerPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The trainer of a script without `windlass.Snapshot`, for restarts. `plan.trainers` has its checkpoints."""

    name: str
    because: str
    notice: str = ""
    """Signal that makes it save when the time is nearly up. Empty: it saves on no signal."""
    notice_because: str = ""
    holds_requeue: bool = False
    """`scontrol requeue` of the trainer only reports that it has saved, because windlass submits the job again."""
    folder: str = ""
    """Folder of its checkpoints, relative to the working folder."""
    resume: ResumeWay
    resume_because: str
    passed: tuple[str, ...] = ()
    """Arguments at the end of the command that windlass added for this start."""


class RayPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One Ray cluster over the nodes of a run. The first node has its head and runs the command."""

    python: str
    """The interpreter that starts Ray on every node."""
    cpus: int = 0
    """CPUs that Ray uses on each node. 0: all that the rank may use there."""
    devices: int | None = None
    """Devices that Ray uses on each node. None: Ray detects them."""
    because: str
    origin: Origin = BUILTIN


class Prologue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of shell in the job before the ranks start."""

    line: str
    because: str
    origin: Origin = BUILTIN


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The plan of one run. The fields are in reading order."""

    version: int
    windlass: str = ""
    name: str
    site: str
    partition: str | None = None
    nodes: int
    ranks_per_node: int
    world_size: int
    scheduler: str
    launcher: str
    request: Request
    command: tuple[str, ...]
    """The command of each rank, with unfilled placeholders. Secret arguments are masked, see `secret_words`."""
    interpreter_because: str = ""
    """Why this interpreter is used, if windlass chose it."""
    secret_words: tuple[int, ...] = ()
    """Positions in `command` whose arguments are in the secrets file."""
    directives: tuple[Argument, ...] = ()
    launch: tuple[Argument, ...] = ()
    """The launcher's command line without the rank script. `{run_dir}` is the run folder."""
    modules_use: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    prologue: tuple[Prologue, ...] = ()
    activate_on_node: str | None = None
    """The environment of --activate, if only the nodes have its folder. The ranks check it there."""
    limits: tuple[Argument, ...] = ()
    """`ulimit` arguments, e.g. `-c 0`."""
    environment: tuple[Setting, ...] = ()
    binding: Binding
    topology: Topology
    rendezvous: Rendezvous = Rendezvous()
    container: ContainerPlan | None = None
    caches: tuple[CacheDir, ...] = ()
    cache_root: str = "/tmp"
    cache: CachePlan | None = None
    agents: AgentsPlan | None = None
    trainer: TrainerPlan | None = None
    ray: RayPlan | None = None
    keep_caches: str | None = None
    hosts: str | None = None
    """Folded host list, if an allocation is known."""
    job_id: str | None = None
    remarks: tuple[Finding, ...] = ()
    grace_s: float = 5.0
    parts: tuple[Plan, ...] = ()
    """The plans of a job file's components, in the order of `request.components`."""
    parent: bool = False
    """The rank script stays the parent of the user's command and reports its end. Set if the run is watched, or if its
    launcher does not report which rank failed."""

    @property
    def partners(self) -> bool:
        """Whether each node keeps the newest snapshot of another node in its memory."""
        return self.request.spares > 0 and self.nodes > 1


def plan_to_json(plan: Plan) -> bytes:
    """Return indented JSON that `plan_from_json` decodes to the same value."""
    return to_json(plan)


def plan_from_json(data: bytes, *, where: str = "plan") -> Plan:
    """Decode a plan. A truncated file, an unknown field or a newer version is an error that names `where`."""
    try:
        version = from_json(data, Versioned).version
        if version > PLAN_VERSION:
            raise VersionError(
                f"{where}: plan version {version} is newer than this windlass reads ({PLAN_VERSION})",
                hint="use the windlass that wrote it, or create the plan again",
            )
        plan = from_json(data if version >= _FINDINGS_SINCE else _with_findings(data), Plan)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: not a plan: {error}", hint=_AGAIN) from error
    _check_counts(plan, where)
    _check_words_for_shells(plan, where)
    return plan


def _with_findings(data: bytes) -> bytes:
    """Convert the remarks of a plan of version 1 or 2 to findings."""
    raw = from_json(data, dict[str, Any])
    remarks = msgspec.convert(raw.get("remarks", []), list[PlanRemark])
    raw["remarks"] = [remark.finding() for remark in remarks]
    return to_json(raw)


def _check_counts(plan: Plan, where: str) -> None:
    """Limit the counts to those of real machines, because readers of the plan loop over its nodes and ranks."""
    wrong = ""
    if not (1 <= plan.nodes <= _MAX_NODES and 1 <= plan.ranks_per_node <= _MAX_RANKS_PER_NODE):
        wrong = f"no machine has {plan.nodes} nodes x {plan.ranks_per_node} ranks"
    elif plan.world_size != plan.nodes * plan.ranks_per_node:
        wrong = f"{plan.nodes} nodes x {plan.ranks_per_node} ranks are not {plan.world_size} ranks"
    if wrong:
        raise ConfigError(f"{where}: not a plan: {wrong}", hint=_AGAIN)


def _check_words_for_shells(plan: Plan, where: str) -> None:
    """Check text that scripts contain unquoted: the name of a variable cannot be quoted."""
    names = [
        *(setting.name for setting in plan.environment),
        *(name for folder in plan.caches for name in folder.variables),
        *(name for name, _ in plan.request.env),
        *plan.request.unset,
        *(setting.name for setting in (plan.container.settings if plan.container else ())),
        *(plan.cache.variables if plan.cache else ()),
    ]
    wrong = next((name for name in names if not NAME.match(name)), None)
    if wrong is not None:
        hint = "use letters, digits and _ in names"
        raise ConfigError(f"{where}: {wrong[:80]!r} is not the name of a variable", hint=hint)
    if (logged := plan.request.comm_log) is not None and not re.fullmatch(r"all|\d{1,9}(,\d{1,9})*", logged):
        raise ConfigError(f"{where}: comm_log must be all or rank numbers, not {logged[:80]!r}", hint=_AGAIN)
