"""Plans for tests: the shortest way from a few words to a plan, without looking at this machine."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.model.plan import Plan
from windlass.model.request import Allocation, PartitionOffer, Request
from windlass.model.site import QueueSpec
from windlass.model.topology import Core, Topology
from windlass.plan.inputs import EnvironmentPlace, PlanningContext, Secrets
from windlass.plan.plan import make_plan
from windlass.sites.catalog import load_site
from windlass.sites.topology.described import topology_from_spec

PLAIN = Topology(arch="x86_64", cores=tuple(Core(cpus=(n,)) for n in range(4)), allowed=(0, 1, 2, 3))


def plan_for(
    site: str,
    *command: str,
    topology: Topology | None = None,
    allocation: Allocation | None = None,
    users: Mapping[str, str] | None = None,
    offers: tuple[PartitionOffer, ...] = (),
    queues: tuple[QueueSpec, ...] = (),
    accounts: tuple[str, ...] = (),
    interpreter: str = "python3",
    place: EnvironmentPlace | None = None,
    starts_ray: bool = False,
    imports: frozenset[str] = frozenset(),
    **options: object,
) -> tuple[Plan, Secrets]:
    """The plan of a command on a site of the catalog."""
    loaded = load_site(site, partition=options.get("partition"))  # type: ignore[arg-type]
    if topology is None:
        spec = loaded.file
        topology = topology_from_spec(spec.node, spec.devices) if spec.node.domains else PLAIN
    request = Request(command=command or ("true",), cwd="/home/user/project", **options)  # type: ignore[arg-type]
    context = PlanningContext(
        site=loaded,
        topology=topology,
        allocation=allocation,
        users_environment=users or {},
        offers=offers,
        queues=queues,
        accounts=accounts,
        python=interpreter,
        place=place,
        starts_ray=starts_ray,
        imports=imports,
    )
    return make_plan(request, context)
