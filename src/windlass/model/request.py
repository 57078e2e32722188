"""What the user asked for, before anything is decided."""

from __future__ import annotations

from typing import Literal

import msgspec

AUTO = "auto"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of run, plan and submit. None means "not said": the site or the machine decides."""

    command: tuple[str, ...]
    """The user's own words: a script and its arguments, `-m module`, or a command."""
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
    """As Slurm names it, where nodes have several (`--gpus-per-node a100:4`)."""
    ranks_per_device: int | None = None
    hosts: str | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    time: str | None = None
    directives: tuple[str, ...] = ()
    launcher_args: tuple[str, ...] = ()
    """Both: a leading `~` removes a default of that name."""

    cpu_bind: str = "auto"
    devices: Literal["all", "one"] | None = None
    device_unit: Literal["tile", "card"] | None = None
    threads: int | None = None

    container: str | None = None
    runtime: str | None = None
    binds: tuple[str, ...] = ()
    container_args: tuple[str, ...] = ()
    host_libs: str | None = None
    """Folder with the host's network libraries for the container; `none` leaves the image as it is."""

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
    """Folders of a shared file system that the ranks read through the cooperative cache. `auto`, before it is looked
    up: those of the interpreter in use."""
    cache_placement: Literal["replicate", "partition"] = "replicate"
    cache_budget_bytes: int | None = None
    cache_readers: int = 1
    """Nodes that read the shared file system side by side, each at the top of a tree of its own."""
    cache_store: str | None = None
    """Folder of each node that holds the cache in the place of its memory; `${NAME}` is expanded there."""
    cache_allow_other: bool = False
    """Let root enter the view."""
    cache_trace: bool = True

    check: bool = False
    """Look at the nodes before the ranks start, and leave out those that are not well."""

    stage: tuple[str, ...] = ()
    """Files and folders that `windlass stage` pushes to the nodes."""

    watch: bool = False
    """Sample the nodes and the ranks' steps while they run."""
    profile: str | None = None
    """A profiler for some ranks."""
    profile_ranks: str = "0"
    """Numbers, separated by commas."""
    profile_steps: int = 32
    """Of torch's profiler; the others see the whole run."""

    restarts: int | None = None
    """How often a failed run is started again, in a row and without a newer snapshot in between."""
    spares: int = 0
    """Nodes of the allocation that wait for one of the others to fail."""
    hang_after_s: float | None = None
    """Silence of all ranks after which the run counts as hanging."""
    until_done: bool = False
    """Submit the job again when its time is up and the work is not done."""

    @property
    def restarts_allowed(self) -> int:
        """Who asks for spare nodes or for the end of the work means to start again too."""
        if self.restarts is not None:
            return self.restarts
        return 3 if self.spares or self.until_done else 0

    @property
    def arguments_at(self) -> int:
        """Where the user's own arguments begin in what a rank runs: behind interpreter and script or module."""
        return {"script": 2, "module": 3}.get(self.kind, 0)

    @property
    def supervised(self) -> bool:
        """Whether somebody has to watch the ranks and may start them again."""
        return bool(self.restarts or self.spares or self.hang_after_s or self.until_done)


class Allocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the scheduler has given us, read inside the job."""

    scheduler: str
    job_id: str
    hosts: tuple[str, ...]
    cpus_per_node: int | None = None
    tasks_per_node: int | None = None
    uneven_tasks: tuple[int, ...] = ()
    """Tasks of each node in order, where their number is not the same on all."""
    gpus_per_node: int | None = None
    end_time_s: float | None = None
    whole_nodes: bool | None = None
    step_tasks: int | None = None
    """Tasks of the step that this process is in, where it is in one that holds CPUs of the job (`srun --pty bash`)."""
    partition: str | None = None
    account: str | None = None


class NodeOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes of a partition that are alike."""

    nodes: int
    cpus: int
    gpus: tuple[tuple[str, int], ...] = ()
    """Each type, empty where the scheduler names none, with the number of such devices per node."""
    features: tuple[str, ...] = ()


class PartitionOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the scheduler says of the nodes of one partition or queue, asked from outside of any job."""

    name: str = ""
    """Empty where the scheduler's nodes belong to no queue."""
    default: bool = False
    kinds: tuple[NodeOffer, ...]

    @property
    def commonest(self) -> NodeOffer:
        """The kind with devices, where there is one, of which there are most."""
        return max(self.kinds, key=lambda kind: (bool(kind.gpus), kind.nodes, kind.cpus))

    @property
    def nodes(self) -> int:
        return self.commonest.nodes

    @property
    def cpus_per_node(self) -> int:
        return self.commonest.cpus

    @property
    def gpus_per_node(self) -> int:
        """Devices of the type of which a node of the commonest kind has most: types are different devices."""
        return max((count for _, count in self.commonest.gpus), default=0)

    @property
    def mixed(self) -> bool:
        """Its nodes differ, so that an allocation may have others than the commonest."""
        return len({(kind.cpus, kind.gpus) for kind in self.kinds}) > 1
