"""The closed schema of a catalog file. One schema serves sites, hardware, networks and the user's own overlays.

Every field has a default, so that a file may say only what it knows and a merge of scopes fills the rest. Unknown keys
are errors. Values that a reader may doubt carry `source`, the key of an entry in `[sources]` of the same file, which
says where it was read, when, and how far to trust it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.model.condition import ALWAYS, Table, When
from windlass.model.origin import ArgumentSpec, Origin, SourceSpec
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
    append: bool = False
    """The value goes in front of what is there, separated by a colon."""
    note: str = ""
    origin: Origin | None = None
    """Filled in by the merge; not for files."""


class DetectSpec(Table, frozen=True, kw_only=True):
    """Evidence that this is the machine. Never one host prefix alone: `hostnames` count only beside something else.

    Host names and values of variables are regular expressions that must match as a whole; domains are suffixes."""

    cluster_names: tuple[str, ...] = ()
    """Names that the scheduler gives its cluster."""
    variables: dict[str, str] = {}
    """Variable to a regular expression that its value matches."""
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
    """The scheduler refuses a job that names no time limit."""
    whole_nodes: bool = False
    """Nodes are given whole, and the request names only how many."""
    gpu_request: Literal["none", "gpus-per-node", "gres", "gpus", "gpus-per-task"] = "none"
    """How the allocation asks for devices; a site that allots whole nodes needs none."""
    directives: tuple[ArgumentSpec, ...] = ()
    source: str = ""


class LauncherSpec(Table, frozen=True, kw_only=True):
    kind: Literal["srun", "pals", "hydra", "openmpi", "flux", "local"] = "local"
    executable: str | None = None
    mpi: str | None = None
    """The process-management interface to ask for (`pmi2`, `pmix`); none leaves the site's default."""
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
    """Job id and run choose one of so many ports from `port_base` on, which is checked to be free on node 0."""
    source: str = ""


class PresetSpec(Table, frozen=True, kw_only=True):
    """A binding that cannot be computed, as a named list: CPUs of each local rank, separated by colons."""

    name: str
    ranks_per_node: int
    cpus: str
    because: str
    source: str
    comm_cpus: str = ""
    """Cores of the collective library's own threads; ranks stay away from them. A preset states its own: those of
    `[binding]` are for computed maps."""
    device_unit: Literal["tile", "card"] | None = None
    devices: tuple[int, ...] = ()
    """Device of each local rank; without it, rank i uses device i * devices / ranks."""
    default: bool = False
    """Taken by `--cpu-bind auto` when the number of ranks per node is this preset's."""
    note: str = ""
    settings: tuple[SettingSpec, ...] = ()
    origin: Origin | None = None


class BindingSpec(Table, frozen=True, kw_only=True):
    order: Literal["device", "core"] = "device"
    """`device`: rank i sits next to device i. `core`: rank i has the i-th cores, and the devices are renumbered."""
    threads: Literal["first", "all"] = "all"
    """Whether a rank's mask has only the first hardware thread of each core."""
    agent_cpus: str = ""
    comm_cpus: str = ""
    cores_per_rank_max: int | None = None
    launcher_binds: bool = True
    """False where the site leaves binding to its launcher (Flux mpibind)."""
    presets: tuple[PresetSpec, ...] = ()
    source: str = ""


class QueueBinSpec(Table, frozen=True, kw_only=True):
    """A queue's time limit for jobs of at most `nodes_max` nodes."""

    nodes_max: int
    time_max: str


class QueueSpec(Table, frozen=True, kw_only=True):
    """A partition, queue or QOS, and what it takes. `plan/queues.py` chooses and checks by it."""

    name: str
    kind: Literal["partition", "qos", "queue"] = "partition"
    nodes_min: int | None = None
    nodes_max: int | None = None
    time_max: str | None = None
    bins: tuple[QueueBinSpec, ...] = ()
    """Time limits by size, smallest first, where jobs of different sizes have different ones."""
    default: bool = False
    """What the scheduler takes when nobody names one."""
    by_name: bool = False
    """For those who name it: by request only, one job per user, or not for training. Never chosen for anybody."""
    accounts: tuple[str, ...] = ()
    """Those that alone may use it, where not all may."""
    devices: bool = True
    """False for nodes without accelerators."""
    gpus: tuple[int, ...] = ()
    """A chunk of this queue is one GPU of a node (PBS), and a job has one of these numbers of them."""
    firm: bool = True
    """False where the limits are somebody's report: a job beyond them gets a warning, not an error."""
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
    """Follow symbolic links on the host and bind what they point at too."""
    optional: bool = False
    """Leave it out when the host does not have it, where the runtime would otherwise refuse to start."""
    origin: Origin | None = None


class ContainerSpec(Table, frozen=True, kw_only=True):
    """What a site's container runtime needs at run time."""

    runtime: str
    executable: str | None = None
    default: bool = False
    arguments: tuple[ArgumentSpec, ...] = ()
    binds: tuple[BindSpec, ...] = ()
    settings: tuple[SettingSpec, ...] = ()
    modules: tuple[str, ...] = ()
    activate: str = ""
    """Shell text that some images need first, e.g. `$WITH_CONDA`; `activate_images` says which (glob patterns)."""
    activate_images: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    """Glob patterns of the images that this entry is for; without any it is for every image of the runtime."""
    device_flag: bool = True
    """False where the runtime's own device option (`--nv`, `--rocm`) does harm at this site."""
    verb: Literal["exec", "run"] = "exec"
    annotations: dict[str, str] = {}
    """Container-engine annotations (EDF)."""
    note: str = ""
    source: str = ""


class HostLibrariesSpec(Table, frozen=True, kw_only=True):
    """Network libraries that a container must take from the host, where the image does not bring the fabric itself."""

    names: tuple[str, ...] = ()
    """As the loader names them: `libfabric.so.1`. What these need is found on the node."""
    folders: tuple[str, ...] = ()
    """Where the node has them, before the loader's own folders; of a pattern, the newest version first."""
    provider: str = ""
    """libfabric's name for the fabric: an image whose own libfabric has it needs nothing of the host."""
    because: str = ""
    source: str = ""


class StorageSpec(Table, frozen=True, kw_only=True):
    home: str = ""
    scratch: str = ""
    """Shared and large; run folders and caches of downloads belong here."""
    downloads: str = ""
    """Where models and data sets are downloaded to, where that is not below `scratch`; `{account}` is the
    job's, `{account_lower}` the same in small letters."""
    system: tuple[str, ...] = ()
    """Folders of the machine's own software, which every node has or reads fast: they need no cache."""
    local: str = "/tmp"
    """Node-local, for JIT caches."""
    local_kind: Literal["memory", "disk", "unknown"] = "unknown"
    stage: str = ""
    """Best node-local place for a staged environment."""
    shared: tuple[str, ...] = ()
    file_systems: dict[str, Literal["Lustre", "NFS", "GPFS", "VAST", "DVS"]] = {}
    """What a shared path is, where that decides how long thousands of imports take."""
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
    """False: advice that the user asks for with `--module`."""
    variables: tuple[str, ...] = ()
    """Patterns of variables that the module is known to set: its values win over the catalog's."""
    cpu_bind: str = ""
    """A variable of the module that holds the launcher's CPU binding, for `ranks_per_node` ranks."""
    ranks_per_node: int | None = None
    python: str = ""
    """The name of the Python that the module brings, where scripts are meant to run with it."""
    torch: str = ""
    """The build of torch that these modules are for (`rocm5.7`), in the place of the site's own."""
    note: str = ""
    source: str = ""


class PythonSpec(Table, frozen=True, kw_only=True):
    """How a Python environment is made at this site: what `windlass env` does."""

    kind: Literal["venv", "conda"] = "venv"
    version: str = ""
    """The Python that conda installs."""
    beneath: Literal["nothing", "module", "image"] = "nothing"
    """Whose packages are seen through the environment: none, those of the site's modules, those of an image."""
    modules: tuple[str, ...] = ()
    """Modules of `[[modules]]` that are not loaded by default and that an environment needs."""
    before: tuple[str, ...] = ()
    """Lines of shell after the modules, such as `conda activate`."""
    image: str = ""
    """The image beneath, where the site has one for all; a pattern stands for the newest."""
    torch: str = ""
    """The wheel that the site names, as in `2.10.0+rocm7.1`."""
    mpicc: str = ""
    """What builds mpi4py with the site's MPI, as in `cc -shared`."""
    compilers: dict[str, str] = {}
    """CC and CXX, where the system's own are too old to build packages."""
    place: str = ""
    """Folder for environments; `{account}` is the project, `{account_lower}` the same in small letters."""
    quotas: dict[str, str] = {}
    """What a path holds at most, in the site's words."""
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
    """Where sources contradict each other, or something worth knowing: the verdict and the alternatives."""

    topic: str
    verdict: str
    alternatives: str = ""
    tell: When | None = None
    """Plans that say this note as a remark: a fact that a user meets first as a failure or a long wait."""
    source: str = ""


class SiteFile(Table, frozen=True, kw_only=True):
    """One file. `kind` says which scope it fills."""

    kind: Literal["site", "hardware", "network", "overlay"] = "site"
    name: str = ""
    """What `--site` takes: the name of the file, without `.toml`."""
    title: str = ""
    """The machine's name, for people."""
    operator: str = ""
    """Who runs it."""
    extends: str | None = None
    """An overlay's base site, or a site that another one differs little from."""
    source: str = ""
    """For the facts at the top of the file."""
    hardware: str | None = None
    """Name of a hardware file: the node, its devices and their peaks come from there."""
    network: str | None = None
    """Name of a network file: the fabric's settings come from there."""
    largest_nodes: int | None = None
    """Nodes that a job can have, for people: `windlass sites show` says it."""
    status: str = ""
    """What of this entry was never run on the machine."""
    login_refuse: bool = True
    """`windlass run` starts no ranks on a login node."""
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
    """Inherited things to leave out: variables (`NCCL_*` is a pattern), options (`--network`), binds (`/opt/cray`)."""
    limits: tuple[ArgumentSpec, ...] = ()
    """Words of `ulimit`, e.g. `-c 0`."""
    modules: tuple[ModuleSpec, ...] = ()
    python: PythonSpec = PythonSpec()
    prologue: tuple[PrologueSpec, ...] = ()
    containers: tuple[ContainerSpec, ...] = ()
    host_libraries: HostLibrariesSpec = HostLibrariesSpec()
    storage: StorageSpec = StorageSpec()
    notes: tuple[NoteSpec, ...] = ()
    partitions: dict[str, PartitionSpec] = {}


class PartitionSpec(Table, frozen=True, kw_only=True):
    """What differs in one partition or queue."""

    hardware: str | None = None
    binding: BindingSpec | None = None
    devices: DeviceSpec | None = None
    storage: StorageSpec | None = None
    settings: tuple[SettingSpec, ...] = ()
    drop: tuple[str, ...] = ()
    directives: tuple[ArgumentSpec, ...] = ()
    note: str = ""
    source: str = ""


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Something inherited that a file leaves out with `drop`."""

    name: str
    text: str
    because: str
    origin: Origin
    by: str
    """The file that leaves it out."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A site after the merge of scopes. `origins` remembers which scope and file decided each key (`launcher.kind`)."""

    name: str
    file: SiteFile
    origins: dict[str, Origin]
    dropped: tuple[Dropped, ...] = ()

    def origin_of(self, key: str) -> Origin:
        """The origin of a key or of the nearest table that holds it."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return Origin(scope="builtin", where="windlass")
