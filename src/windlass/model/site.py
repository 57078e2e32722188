"""The closed schema of a catalog file, for sites, hardware, networks and the user's overlays.

Every field has a default. A file therefore contains only the facts that its author has, and a merge of scopes adds the
others. Unknown keys are errors. A value that a reader may doubt has a `source`: the key of an entry in `[sources]` of
the same file. The entry states where the value was read, when, and how far to trust it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.model.condition import ALWAYS, Table, When
from windlass.model.origin import ArgumentSpec, Dropped, Origin, SourceSpec
from windlass.model.topology import DeviceSpec, FabricSpec, NodeSpec, PeakSpec, ReferenceSpec


class SettingSpec(Table, frozen=True, kw_only=True):
    """An environment variable. A missing `value` unsets it."""

    name: str
    value: str | None = None
    because: str
    source: str
    when: When = ALWAYS
    expand: bool = False
    """`${NAME}` in the value is expanded on the node, `{local_rank}` and the like in the rank."""
    prepend: bool = False
    """The value is added before the variable's existing value, separated by a colon."""
    append: bool = False
    """The value is added after the variable's existing value, separated by a colon."""
    note: str = ""
    origin: Origin | None = None
    """Set by the merge. Files must not contain it."""


class DetectSpec(Table, frozen=True, kw_only=True):
    """Evidence that this is the machine. `hostnames` count only together with other evidence.

    Host names and values of variables are regular expressions that must match the whole text. Domains are suffixes.
    """

    cluster_names: tuple[str, ...] = ()
    """Names that the scheduler gives its cluster."""
    variables: dict[str, str] = {}
    """Maps a variable to a regular expression that its value matches."""
    domains: tuple[str, ...] = ()
    hostnames: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    login_hosts: tuple[str, ...] = ()
    source: str = ""


class SchedulerSpec(Table, frozen=True, kw_only=True):
    kind: Literal["slurm", "pbs", "flux", "none"] = "none"
    default_partition: str | None = None
    account_required: bool = False
    time_required: bool = False
    """The scheduler refuses a job without a time limit."""
    whole_nodes: bool = False
    """The scheduler allocates whole nodes, and the request contains only their number."""
    gpu_request: Literal["none", "gpus-per-node", "gres", "gpus", "gpus-per-task"] = "none"
    """How the allocation asks for devices. A site that allocates whole nodes uses `none`."""
    directives: tuple[ArgumentSpec, ...] = ()
    source: str = ""


class LauncherSpec(Table, frozen=True, kw_only=True):
    kind: Literal["srun", "pals", "hydra", "openmpi", "flux", "local"] = "local"
    executable: str | None = None
    mpi: str | None = None
    """The process-management interface to request (`pmi2`, `pmix`). Without it, the site's default applies."""
    arguments: tuple[ArgumentSpec, ...] = ()
    source: str = ""


class RendezvousSpec(Table, frozen=True, kw_only=True):
    """How ranks find each other: the first host's name, changed to a name on the fabric."""

    suffix: str = ""
    """Appended to the short host name (`.hsn.example.org`, or `i` at a site with such names)."""
    short_name: bool = True
    address: Literal["host", "ip"] = "host"
    interface: str | None = None
    """Interface whose address to publish when `address` is `ip`."""
    port_base: int = 20000
    port_span: int = 12000
    """Number of ports, counted from `port_base`. Job id and run select one of them, and windlass checks that it is free
    on node 0."""
    source: str = ""


class PresetSpec(Table, frozen=True, kw_only=True):
    """A binding that cannot be computed, as a named list: CPUs of each local rank, separated by colons."""

    name: str
    ranks_per_node: int
    cpus: str
    because: str
    source: str
    comm_cpus: str = ""
    """Cores of the collective library's threads. Ranks do not use them. A preset needs its own list: the one in
    `[binding]` is for computed maps."""
    device_unit: Literal["tile", "card"] | None = None
    devices: tuple[int, ...] = ()
    """Device of each local rank. Without it, rank i uses device i * devices / ranks."""
    default: bool = False
    """`--cpu-bind auto` uses this preset if the number of ranks per node is the same."""
    note: str = ""
    settings: tuple[SettingSpec, ...] = ()
    origin: Origin | None = None


class BindingSpec(Table, frozen=True, kw_only=True):
    order: Literal["device", "core"] = "device"
    """`device`: rank i is next to device i. `core`: rank i has the i-th cores, and the devices are renumbered."""
    threads: Literal["first", "all"] = "all"
    """`first`: a rank's mask has only the first hardware thread of each core. `all`: it has all of them."""
    agent_cpus: str = ""
    comm_cpus: str = ""
    cores_per_rank_max: int | None = None
    launcher_binds: bool = True
    """False if the site leaves binding to its launcher (Flux mpibind)."""
    presets: tuple[PresetSpec, ...] = ()
    source: str = ""


class QueueBinSpec(Table, frozen=True, kw_only=True):
    """A queue's time limit for jobs of at most `nodes_max` nodes."""

    nodes_max: int
    time_max: str


class QueueSpec(Table, frozen=True, kw_only=True):
    """A partition, queue or QOS with its limits. `plan/queues.py` uses them to choose a queue and to check jobs."""

    name: str
    kind: Literal["partition", "qos", "queue"] = "partition"
    nodes_min: int | None = None
    nodes_max: int | None = None
    time_max: str | None = None
    bins: tuple[QueueBinSpec, ...] = ()
    """Time limits by job size, smallest first, if they depend on the size."""
    default: bool = False
    """The scheduler uses this one if the job names none."""
    by_name: bool = False
    """windlass never chooses this one automatically: it is by request only, limited to one job per user, or not for
    training."""
    accounts: tuple[str, ...] = ()
    """The only accounts that may use it. Empty: all accounts may."""
    devices: bool = True
    """False for nodes without accelerators."""
    gpus: tuple[int, ...] = ()
    """A chunk of this queue is one GPU of a node (PBS). A job has one of these numbers of chunks."""
    firm: bool = True
    """False if the limits come from an individual report. A job beyond them gets a warning, not an error."""
    note: str = ""
    source: str = ""


class BindSpec(Table, frozen=True, kw_only=True):
    """A host path that a container needs."""

    source_path: str
    target: str | None = None
    because: str
    source: str
    when: When = ALWAYS
    follow: bool = False
    """Follow symbolic links on the host, and bind their targets too."""
    optional: bool = False
    """Leave it out if the host does not have it. Otherwise the runtime would refuse to start."""
    origin: Origin | None = None


class ContainerSpec(Table, frozen=True, kw_only=True):
    """Settings that a site's container runtime needs at run time."""

    runtime: str
    executable: str | None = None
    default: bool = False
    arguments: tuple[ArgumentSpec, ...] = ()
    binds: tuple[BindSpec, ...] = ()
    settings: tuple[SettingSpec, ...] = ()
    modules: tuple[str, ...] = ()
    activate: str = ""
    """Shell text that some images must execute first, e.g. `$WITH_CONDA`. `activate_images` selects the images (glob
    patterns)."""
    activate_images: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    """Glob patterns of the images that this entry applies to. Without any, it applies to every image of the runtime."""
    device_flag: bool = True
    """False if the runtime's own device option (`--nv`, `--rocm`) is harmful at this site."""
    verb: Literal["exec", "run"] = "exec"
    annotations: dict[str, str] = {}
    """Container-engine annotations (EDF)."""
    note: str = ""
    source: str = ""


class HostLibrariesSpec(Table, frozen=True, kw_only=True):
    """Network libraries of the host that a container needs, if the image does not contain the fabric's libraries."""

    names: tuple[str, ...] = ()
    """Names as in the loader: `libfabric.so.1`. Their dependencies are found on the node."""
    folders: tuple[str, ...] = ()
    """Folders of the node that contain them, searched before the loader's folders. For a pattern, the newest version
    comes first."""
    provider: str = ""
    """libfabric's name for the fabric. An image whose own libfabric supports it needs no libraries of the host."""
    because: str = ""
    source: str = ""


class StorageSpec(Table, frozen=True, kw_only=True):
    home: str = ""
    scratch: str = ""
    """Shared and large. Use it for run folders and download caches."""
    downloads: str = ""
    """Folder for downloaded models and data sets, if it is not below `scratch`. `{account}` is the job's account,
    `{account_lower}` the same in lower case."""
    system: tuple[str, ...] = ()
    """Folders of the machine's own software. Every node has them or reads them fast, so they need no cache."""
    local: str = "/tmp"
    """Node-local, for JIT caches."""
    local_kind: Literal["memory", "disk", "unknown"] = "unknown"
    stage: str = ""
    """Best node-local place for a staged environment."""
    shared: tuple[str, ...] = ()
    file_systems: dict[str, Literal["Lustre", "NFS", "GPFS", "VAST", "DVS"]] = {}
    """File system of a shared path, if it determines how long thousands of imports take."""
    caches: dict[str, str] = {}
    """Mount point of the site's own cache of a shared file system, by the name for `--cache`. The option of the same
    name has its modules and the line that starts it."""
    links: dict[str, str] = {}
    """Paths that are links into another tree (`/scratch` into `/pfs`), so that a container bind must follow them."""
    note: str = ""
    source: str = ""


class ModuleSpec(Table, frozen=True, kw_only=True):
    use: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    because: str = ""
    when: When = ALWAYS
    default: bool = True
    """False: a recommendation. The user requests it with `--module`."""
    variables: tuple[str, ...] = ()
    """Patterns of variables that the module is known to set. Its values take precedence over the catalog's."""
    cpu_bind: str = ""
    """A variable of the module that contains the launcher's CPU binding, for `ranks_per_node` ranks."""
    ranks_per_node: int | None = None
    python: str = ""
    """Name of the Python that the module provides, if scripts should run with it."""
    torch: str = ""
    """The build of torch that these modules are for (`rocm5.7`). It replaces the site's build."""
    note: str = ""
    source: str = ""


class PythonSpec(Table, frozen=True, kw_only=True):
    """How `windlass env` creates a Python environment at this site."""

    kind: Literal["venv", "conda"] = "venv"
    version: str = ""
    """The Python version that conda installs."""
    beneath: Literal["nothing", "module", "image"] = "nothing"
    """The packages visible through the environment: none, those of the site's modules, or those of an image."""
    modules: tuple[str, ...] = ()
    """Modules of `[[modules]]` that an environment needs and that are not loaded by default."""
    before: tuple[str, ...] = ()
    """Lines of shell to execute after the modules, such as `conda activate`."""
    image: str = ""
    """The image beneath, if the site has one for all users. A pattern selects the newest."""
    torch: str = ""
    """The wheel that the site names, as in `2.10.0+rocm7.1`."""
    mpicc: str = ""
    """The compiler command that builds mpi4py with the site's MPI, as in `cc -shared`."""
    compilers: dict[str, str] = {}
    """CC and CXX, if the system's compilers are too old to build packages."""
    place: str = ""
    """Folder for environments. `{account}` is the project, `{account_lower}` the same in lower case."""
    quotas: dict[str, str] = {}
    """The quota of a path, quoted from the site."""
    because: str = ""
    note: str = ""
    source: str = ""


class PrologueSpec(Table, frozen=True, kw_only=True):
    """A line of shell that a job at this site needs before its ranks start."""

    line: str
    because: str
    source: str
    when: When = ALWAYS
    origin: Origin | None = None


class NoteSpec(Table, frozen=True, kw_only=True):
    """A verdict and its alternatives, where sources contradict each other, or another useful fact."""

    topic: str
    verdict: str
    alternatives: str = ""
    tell: When | None = None
    """Plans for which this holds show the note as a remark. For facts that users otherwise notice only as a failure or
    a long wait."""
    source: str = ""


class SiteFile(Table, frozen=True, kw_only=True):
    """One file. `kind` is the scope that it fills."""

    kind: Literal["site", "hardware", "network", "overlay"] = "site"
    name: str = ""
    """The value for `--site`: the name of the file, without `.toml`."""
    title: str = ""
    """The machine's name, for people."""
    operator: str = ""
    """The organisation that runs it."""
    extends: str | None = None
    """An overlay's base site, or a similar site from which this one differs little."""
    source: str = ""
    """The source of the facts at the top of the file."""
    hardware: str | None = None
    """Name of a hardware file, which defines the node, its devices and their peaks."""
    network: str | None = None
    """Name of a network file, which defines the fabric's settings."""
    largest_nodes: int | None = None
    """The largest number of nodes of a job. For people: `windlass sites show` prints it."""
    status: str = ""
    """The parts of this entry that were never run on the machine."""
    login_refuse: bool = True
    """`windlass run` starts no ranks on a login node."""
    login_imports: bool = True
    """`windlass submit --cache` may import a script's packages on a login node, one process at the lowest priority."""
    offline: bool = False
    """Compute nodes cannot reach the internet."""
    sources: dict[str, SourceSpec] = {}
    detect: DetectSpec = DetectSpec()
    scheduler: SchedulerSpec = SchedulerSpec()
    launcher: LauncherSpec = LauncherSpec()
    rendezvous: RendezvousSpec = RendezvousSpec()
    binding: BindingSpec = BindingSpec()
    devices: DeviceSpec = DeviceSpec()
    node: NodeSpec = NodeSpec()
    peaks: tuple[PeakSpec, ...] = ()
    references: tuple[ReferenceSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    fabric: FabricSpec = FabricSpec()
    settings: tuple[SettingSpec, ...] = ()
    drop: tuple[str, ...] = ()
    """Inherited entries to leave out: variables (`NCCL_*` is a pattern), options (`--network`), binds (`/opt/cray`)."""
    limits: tuple[ArgumentSpec, ...] = ()
    """Arguments of `ulimit`, e.g. `-c 0`."""
    modules: tuple[ModuleSpec, ...] = ()
    python: PythonSpec = PythonSpec()
    prologue: tuple[PrologueSpec, ...] = ()
    containers: tuple[ContainerSpec, ...] = ()
    host_libraries: HostLibrariesSpec = HostLibrariesSpec()
    storage: StorageSpec = StorageSpec()
    notes: tuple[NoteSpec, ...] = ()
    partitions: dict[str, PartitionSpec] = {}


class PartitionSpec(Table, frozen=True, kw_only=True):
    """Settings that differ in one partition or queue."""

    hardware: str | None = None
    binding: BindingSpec | None = None
    devices: DeviceSpec | None = None
    storage: StorageSpec | None = None
    settings: tuple[SettingSpec, ...] = ()
    drop: tuple[str, ...] = ()
    directives: tuple[ArgumentSpec, ...] = ()
    note: str = ""
    source: str = ""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A site after the merge of scopes. `origins` maps each key (`launcher.kind`) to the scope and file that set it."""

    name: str
    file: SiteFile
    origins: dict[str, Origin]
    dropped: tuple[Dropped, ...] = ()

    def origin_of(self, key: str) -> Origin:
        """Return the origin of a key, or of the nearest table that contains it."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return Origin(scope="builtin", where="windlass")
