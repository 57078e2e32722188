"""The inputs of planning in addition to the request, and the secrets that the plan hides."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.backends.containers.choose import ContainerRequest, ContainerSite, SeenPaths
from windlass.base.centre import ForbiddenOption
from windlass.model.finding import Finding
from windlass.model.request import Allocation, PartitionOffer, Request
from windlass.model.site import QueueSpec, Site
from windlass.model.topology import Topology
from windlass.sites.detect import Detection


class EnvironmentPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The path of the ranks' environment, and how long some file operations on it take from here."""

    path: str
    file_system: str
    """The kernel's name: `lustre`, `nfs4`."""
    shared: bool
    """Other nodes read it from the same servers."""
    stat_ms: float | None = None
    open_ms: float | None = None
    """Median time of a stat (above), and of opening a file and reading a byte. None if not measured."""
    answered: bool = True
    """False: the file system did not answer before the timeout."""


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the text of the script and of the modules in its folder contains."""

    names: frozenset[str] = frozenset()
    """Names, attributes and imported names."""
    keywords: Mapping[str, str] = {}
    """Keyword arguments of calls with a literal text or bool."""
    options: Mapping[str, str] = {}
    """Texts that begin with `--`, and the literal default if the text is an option of argparse."""


class PlanningContext(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that planning needs in addition to the request. The caller gathers them."""

    site: Site
    topology: Topology
    allocation: Allocation | None = None
    offers: tuple[PartitionOffer, ...] = ()
    """The scheduler's partitions, if the catalog has no node and the job's nodes are not visible."""
    queues: tuple[QueueSpec, ...] = ()
    """Limits of the partitions from the scheduler, if the site's file has no table of queues."""
    accounts: tuple[str, ...] = ()
    """Accounts of the user from the scheduler, if the site's file has no table of queues."""
    seen_paths: SeenPaths | None = None
    """Paths that a container needs, checked if this process is on a node that will run ranks."""
    users_environment: Mapping[str, str] = {}
    """Variables that the user set (see environment.modules.users_variables)."""
    python: str = "python3"
    python_because: str = "found first in PATH"
    imports: frozenset[str] = frozenset()
    """Top-level packages that the script and the modules in its directory import."""
    script: ScriptFacts = ScriptFacts()
    trains_alone: bool = False
    """The script trains with torch and certainly joins no process group."""
    starts_ray: bool = False
    """The script starts or connects to a Ray cluster, and joins no process group by itself."""
    place: EnvironmentPlace | None = None
    """Where the environment of that Python is, measured if many nodes may read it."""
    activate_kind: str | None = None
    """`venv` or `conda` for --activate. `unseen` if the directory exists only on the nodes."""
    cache_roots: tuple[tuple[str, str], ...] = ()
    """Roots of --cache as given and with symbolic links resolved, if this process could read them."""
    cache_environments: tuple[str, ...] = ()
    """Prefixes of environments that the ranks may use."""
    bad_hosts: tuple[str, ...] = ()
    """Nodes of this site that failed recently, and those of the centre's list (see run.bad_nodes)."""
    forbidden: tuple[ForbiddenOption, ...] = ()
    """Options that the computing centre forbids here."""
    busy_hosts: tuple[str, ...] = ()
    """Nodes of the allocation that already run something, if the request asks for a part of the allocation."""
    on_node: bool = False
    """This process is on a node that will run ranks."""
    taken_ports: tuple[int, ...] = ()
    """Ports in use on the first node, if that is not this node."""
    detection: Detection | None = None
    """How the site was detected, if the user did not name it."""
    remarks: tuple[Finding, ...] = ()
    """Findings from gathering the context."""
    parts: tuple[PlanningContext, ...] = ()
    """The context of each component of a job file."""
    component: str = ""
    """The component of a job file that is planned with this context. It runs next to other steps of the same job."""
    devices_of_node: int | None = None
    """Devices of the whole node, if `topology` is limited to the share of a component."""

    @property
    def avoided_hosts(self) -> tuple[str, ...]:
        """Nodes of the allocation that are used only if no others are left."""
        return (*self.busy_hosts, *self.bad_hosts)


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets that the plan hides: command arguments by position, variables by name. For a 0600 file."""

    words: dict[int, str] = {}
    env: dict[str, str] = {}
    filled_from: int | None = None
    """Placeholders are filled in from this command argument on. None: in no argument."""
    parts: tuple[Secrets, ...] = ()
    """Those of each component of a job file."""

    def __bool__(self) -> bool:
        return bool(self.words or self.env)


def container_request(request: Request, image: str, command: tuple[str, ...] = ()) -> ContainerRequest:
    """The container part of a request: the image and the directories that its command names."""
    needs: list[tuple[str, str]] = []
    if request.kind == "script" and request.command[0].startswith("/"):
        needs.append((request.command[0].rpartition("/")[0] or "/", "the script's folder"))
    if request.activate:
        needs.append((request.activate, "the environment that --activate names"))
    inside = request.cwd.rstrip("/") + "/"
    return ContainerRequest(
        image=image,
        binds=request.binds,
        arguments=request.container_args,
        cwd=request.cwd,
        needs=tuple((path, because) for path, because in needs if not f"{path}/".startswith(inside)),
        command=command,
        host_libs=request.host_libs,
    )


def container_site(site: Site) -> ContainerSite:
    """The container part of a site."""
    return ContainerSite(
        specs=site.file.containers,
        storage=site.file.storage,
        host_libraries=site.file.host_libraries,
        host_libs_origin=site.origin_of("host_libraries"),
    )
