"""The user's request, before any decision."""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.model.condition import Table

AUTO = "auto"
SITE_CACHES = ("copper",)
"""Caches of sites, which --cache names instead of using windlass's own."""


class Ready(Table, frozen=True, kw_only=True):
    """When a component counts as ready. Exactly one of the tests is given. Components that need it wait for this."""

    port: bool = False
    """Its port accepts connections."""
    http: str = ""
    """A GET of this path on its port is answered with 200."""
    log: str = ""
    """A line of its output contains this text."""
    file: str = ""
    """This file exists. A relative path starts at the folder of the job file."""
    finished: bool = False
    """It has ended with code 0."""
    within_s: float = 300.0
    """Deadline in seconds. A component that is not ready by then has failed."""


ComponentEnd = Literal["wait", "job", "service", "ignore"]


class Component(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One program of a job file, and its place among the others."""

    name: str
    request: Request
    cores_per_node: int | None = None
    """Cores of each of its nodes. None, and no devices: the whole node."""
    needs: tuple[str, ...] = ()
    ready: Ready | None = None
    port: int | None = None
    """The value of `{NAME.port}`. None: windlass chooses a free port."""
    end: ComponentEnd = "wait"
    file: str = ""
    lines: dict[str, int] = {}
    """The job file, and the line of each key of this component. An empty key is the table itself."""

    @property
    def shares(self) -> bool:
        """Whether it uses a part of each of its nodes."""
        return self.cores_per_node is not None or self.request.gpus_per_node is not None

    def where(self, key: str = "") -> str:
        """Return the place of a key for an error: `job.toml:12: components.server.port`."""
        line = self.lines.get(key, self.lines.get("", 1))
        return f"{self.file}:{line}: components.{self.name}" + (f".{key}" if key else "")


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of run, plan and submit. None means "not given": the site or the machine decides."""

    command: tuple[str, ...]
    """The user's command line: a script and its arguments, `-m module`, or a command."""
    kind: Literal["script", "module", "command", "none"] = "command"
    """`none`: there are no ranks, only agents (`windlass stage`, `windlass cache start`)."""
    name: str | None = None
    cwd: str = ""
    python: str | None = None
    placeholders: bool = True

    site: str | None = None
    site_file: str | None = None
    scheduler: str | None = None
    launcher: str | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    """Slurm's name of the type, if nodes have several (`--gpus-per-node a100:4`)."""
    ranks_per_device: int | None = None
    hosts: str | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    time: str | None = None
    directives: tuple[str, ...] = ()
    launcher_args: tuple[str, ...] = ()
    """For both: a leading `~` removes a default of that name."""

    cpu_bind: str = "auto"
    devices: Literal["all", "one"] | None = None
    device_unit: Literal["tile", "card"] | None = None
    threads: int | None = None

    container: str | None = None
    runtime: str | None = None
    binds: tuple[str, ...] = ()
    container_args: tuple[str, ...] = ()
    host_libs: str | None = None
    """Folder with the host's network libraries for the container. `none` leaves the image unchanged."""

    env: tuple[tuple[str, str], ...] = ()
    env_prepend: tuple[tuple[str, str], ...] = ()
    env_append: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    no_modules: bool = False
    activate: str | None = None
    keep_caches: str | None = None
    options: tuple[str, ...] = ()
    """Named remedies and experiments of the site (`--with NAME`)."""
    comm_log: str | None = None
    """Ranks whose collective library logs to a file: a list, `all`, or None."""
    mpi: str | None = None
    master_port: int | None = None
    run_dir: str | None = None
    grace_s: float = 5.0
    """Time between asking ranks to end and killing them."""

    cache: tuple[str, ...] = ()
    """Folders of a shared file system that the ranks read through the cooperative cache. `auto`, before it is resolved:
    those of the interpreter in use."""
    cache_placement: Literal["replicate", "partition"] = "replicate"
    cache_budget_bytes: int | None = None
    cache_readers: int = 1
    """Nodes that read the shared file system in parallel. Each is the root of a separate tree."""
    cache_store: str | None = None
    """Folder of each node for the cache, which otherwise uses its memory. `${NAME}` is expanded on the node."""
    cache_allow_other: bool = False
    """Let root enter the view."""
    cache_trace: bool = True

    check: bool = False
    """Check the nodes before the ranks start, and leave out the unhealthy ones."""

    stage: tuple[str, ...] = ()
    """Files and folders that `windlass stage` pushes to the nodes."""

    watch: bool = False
    """Sample the nodes and the ranks' steps while they run."""
    profile: str | None = None
    """A profiler for some ranks."""
    profile_ranks: str = "0"
    """Numbers, separated by commas."""
    profile_steps: int = 32
    """For torch's profiler. The other profilers record the whole run."""

    restarts: int | None = None
    """How often a failed run is restarted, counted in a row and without a newer snapshot in between."""
    spares: int = 0
    """Nodes of the allocation that wait for another node to fail."""
    hang_after_s: float | None = None
    """Silence of all ranks after which the run counts as hanging."""
    until_done: bool = False
    """Submit the job again when its time is up and the work is not done."""

    components: tuple[Component, ...] = ()
    """The programs of a job file. The other fields then describe the job that contains them all."""

    @property
    def restarts_allowed(self) -> int:
        """The allowed number of restarts. Spare nodes and `until_done` imply restarts."""
        if self.restarts is not None:
            return self.restarts
        return 3 if self.spares or self.until_done else 0

    @property
    def arguments_at(self) -> int:
        """Index of the user's first argument in a rank's command, after the interpreter and the script or module."""
        return {"script": 2, "module": 3}.get(self.kind, 0)

    @property
    def supervised(self) -> bool:
        """Whether windlass must watch the ranks and may restart them."""
        return bool(self.restarts or self.spares or self.hang_after_s or self.until_done)


class Allocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The scheduler's allocation, read inside the job."""

    scheduler: str
    job_id: str
    hosts: tuple[str, ...]
    cpus_per_node: int | None = None
    tasks_per_node: int | None = None
    uneven_tasks: tuple[int, ...] = ()
    """Tasks of each node in order, if the number is not the same on all nodes."""
    gpus_per_node: int | None = None
    end_time_s: float | None = None
    whole_nodes: bool | None = None
    step_tasks: int | None = None
    """Tasks of the step that contains this process, if that step holds CPUs of the job (`srun --pty bash`)."""
    partition: str | None = None
    account: str | None = None


class NodeOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes of a partition that are alike."""

    nodes: int
    cpus: int
    gpus: tuple[tuple[str, int], ...] = ()
    """Each type with the number of such devices per node. The type is empty if the scheduler names none."""
    features: tuple[str, ...] = ()


class PartitionOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The scheduler's description of the nodes of one partition or queue, queried from outside of any job."""

    name: str = ""
    """Empty if the scheduler's nodes belong to no queue."""
    default: bool = False
    kinds: tuple[NodeOffer, ...]

    @property
    def commonest(self) -> NodeOffer:
        """The most frequent kind of node. Kinds with devices are preferred."""
        return max(self.kinds, key=lambda kind: (bool(kind.gpus), kind.nodes, kind.cpus))

    @property
    def nodes(self) -> int:
        return self.commonest.nodes

    @property
    def cpus_per_node(self) -> int:
        return self.commonest.cpus

    @property
    def gpus_per_node(self) -> int:
        """The largest number of devices of one type on a node of the commonest kind. Types are different devices."""
        return max((count for _, count in self.commonest.gpus), default=0)

    @property
    def mixed(self) -> bool:
        """Whether its nodes differ, so that an allocation may have others than the commonest kind."""
        return len({(kind.cpus, kind.gpus) for kind in self.kinds}) > 1
