"""What goes into planning beside the request, and what comes out beside the plan."""

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
    """Where the ranks' environment lies, and what a short look at some of its files cost from here."""

    path: str
    file_system: str
    """As the kernel calls it: `lustre`, `nfs4`."""
    shared: bool
    """Other nodes read it through the same servers."""
    stat_ms: float | None = None
    open_ms: float | None = None
    """Median of looking for a file, and of opening it and reading a byte; None where nothing was looked at."""
    answered: bool = True
    """False: it did not answer as long as we waited."""


class PlanningContext(msgspec.Struct, frozen=True, kw_only=True):
    """What planning needs to know beside the request; gathered at the edge."""

    site: Site
    topology: Topology
    allocation: Allocation | None = None
    offers: tuple[PartitionOffer, ...] = ()
    """What the scheduler says of its partitions, where the catalog has no node and the job's own cannot be seen."""
    queues: tuple[QueueSpec, ...] = ()
    """Limits of the partitions, and ..."""
    accounts: tuple[str, ...] = ()
    """... accounts of the user, as the scheduler says them, where the site's file has no table of queues."""
    seen_paths: SeenPaths | None = None
    """Paths that a container needs, looked for where this process is on a node that will run ranks."""
    users_environment: Mapping[str, str] = {}
    """Variables that are the user's own will (see environment.modules.users_variables)."""
    python: str = "python3"
    python_because: str = "found first in PATH"
    imports: frozenset[str] = frozenset()
    """Top-level packages that the script and the modules in its folder import."""
    trains_alone: bool = False
    """The script trains with torch and certainly joins no process group."""
    place: EnvironmentPlace | None = None
    """Where the environment of that Python lies, looked at where many nodes may read it."""
    activate_kind: str | None = None
    """`venv` or `conda`, where the request says --activate; `unseen` where only the nodes have the folder."""
    cache_roots: tuple[tuple[str, str], ...] = ()
    """Roots of --cache as they were said and with links followed, where they could be looked at."""
    cache_environments: tuple[str, ...] = ()
    """Prefixes of environments that the ranks may use."""
    bad_hosts: tuple[str, ...] = ()
    """Nodes of this site that failed lately, and those of the centre's list (see run.bad_nodes)."""
    forbidden: tuple[ForbiddenOption, ...] = ()
    """What the computing centre refuses here."""
    busy_hosts: tuple[str, ...] = ()
    """Nodes of the allocation on which something runs already, where a part of it is asked for."""
    on_node: bool = False
    """This process is on a node that will run ranks."""
    taken_ports: tuple[int, ...] = ()
    """Ports in use on the first node, where that is not this one."""
    detection: Detection | None = None
    """How the site was found, where nobody named it."""
    remarks: tuple[Finding, ...] = ()
    """What was noticed while the context was gathered."""

    @property
    def avoided_hosts(self) -> tuple[str, ...]:
        """Nodes of the allocation that are taken only where there are no others."""
        return (*self.busy_hosts, *self.bad_hosts)


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan hides: words of the command by position, variables by name. For a 0600 file."""

    words: dict[int, str] = {}
    env: dict[str, str] = {}
    filled_from: int | None = None
    """From this word of the command on, placeholders are filled in; None: nowhere."""

    def __bool__(self) -> bool:
        return bool(self.words or self.env)


def container_request(request: Request, image: str, command: tuple[str, ...] = ()) -> ContainerRequest:
    """What a request asks of its container: the image and the folders that its command names."""
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
    """What a site says of containers."""
    return ContainerSite(
        specs=site.file.containers,
        storage=site.file.storage,
        host_libraries=site.file.host_libraries,
        host_libs_origin=site.origin_of("host_libraries"),
    )
