"""The shape of a run: number of nodes and ranks, scheduler, launcher, devices. Pure.

This module finds contradictions between the request and the machine before anything starts.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec

from windlass.backends.launchers import get_launcher, launcher_names
from windlass.backends.schedulers import get_scheduler
from windlass.base.notation.counts import counted
from windlass.base.notation.hostlist import expand_hostlist, fold_hostlist
from windlass.errors import UsageError
from windlass.model.finding import Finding
from windlass.model.plan import Binding
from windlass.model.request import Allocation, PartitionOffer, Request
from windlass.model.site import Site
from windlass.model.topology import Topology
from windlass.plan.inputs import PlanningContext
from windlass.plan.offers import check_limits, check_size, choose_offer, refuse_planned_directives
from windlass.plan.queues import QueueChoice, choose_queue
from windlass.sites.topology.binding_request import preset_for_ranks

VISIBILITY = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}
_TILE_SHARES = (1, 2, 4)
"""Ranks that may share a tile of an Intel GPU, which has four command streamers."""
RAY = "ray"
"""An option of --with at every site: one Ray cluster over all nodes."""
_LAUNCHER_OF = {"slurm": "srun", "pbs": "hydra", "flux": "flux", "none": "local"}


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a run (see the module docstring)."""

    name: str
    scheduler: str
    launcher: str
    nodes: int
    ranks_per_node: int
    ranks_per_device: int
    devices: Literal["all", "one"]
    device_unit: Literal["tile", "card"]
    vendor: str | None
    visibility: str | None
    all_devices: tuple[int, ...]
    partition: str | None
    qos: str | None
    hosts: str | None
    part_of_allocation: bool
    whole_nodes: bool
    cores_unknown: bool = False
    """The job has parts of nodes, and only the launcher has the list of cores on each node."""
    counted_cpus: int | None = None
    """CPUs per rank by the scheduler's count, for nodes that this process cannot inspect."""
    remarks: tuple[Finding, ...] = ()

    @property
    def gpus_per_node(self) -> int | None:
        """Devices to request from the scheduler, or None for a node without devices."""
        return len(self.all_devices) or None

    def cpus_per_rank(self, binding: Binding) -> int | None:
        """Hardware threads of the smallest rank, or an equal share if ranks are not bound. None if unknown."""
        sizes = [len(rank.cpus) for rank in binding.ranks]
        return min(sizes) if sizes and min(sizes) > 0 else self.counted_cpus


def decide_shape(request: Request, context: PlanningContext) -> Shape:
    """Decide the shape. Raises `UsageError` that names the two things that contradict each other.

    Hosts to avoid are left out if the allocation has enough others. The scheduler's offer is used if the node itself is
    unknown.
    """
    site, topology, allocation = context.site, context.topology, context.allocation
    scheduler = _scheduler(request, site, allocation)
    launcher = request.launcher or _site_launcher(site, scheduler)
    backend = get_launcher(launcher)
    if allocation is not None and (allocation.step_tasks or 1) > 1:
        raise UsageError(
            f"windlass was started as {allocation.step_tasks} tasks of one step: each would start all ranks",
            hint="start windlass itself once, without srun or mpiexec in front: it starts the ranks",
        )
    nodes, hosts, part = _nodes(request, allocation, context.avoided_hosts)
    if nodes > 1 and not backend.multi_node:
        raise UsageError(
            f"--nodes {nodes} with the {launcher} launcher, which starts ranks only on this machine",
            hint="use --site or --scheduler, or run inside an allocation",
        )
    unit = request.device_unit or site.file.devices.unit
    if scheduler != "none":
        refuse_planned_directives(request.directives)
    offer = None if topology.cores or allocation else choose_offer(request, site, context.offers, context.queues)
    visible, told = _devices(request, device_numbers(topology, unit, site.file.node.tiles_per_card), topology, offer)
    ranks_per_device = request.ranks_per_device or 1
    vendor = topology.devices[0].vendor if topology.devices else site.file.devices.vendor
    allowed = _TILE_SHARES if vendor == "intel" and unit == "tile" else ()
    if ranks_per_device < 1 or (allowed and ranks_per_device not in allowed):
        hint = "a tile can be split into 1, 2 or 4 parts" if allowed else "give 1 or more"
        raise UsageError(f"--ranks-per-device {ranks_per_device}", hint=hint)
    ranks, remarks = _ranks_per_node(request, visible, ranks_per_device, allocation, site)
    if allocation is None and not site.file.queues:
        check_limits(request, site, context.queues, context.accounts, nodes + request.spares)
    queue = _queue(request, site, allocation, scheduler, nodes + request.spares)
    if offer is not None:
        check_size(offer, nodes + request.spares, ranks, request)
    return Shape(
        name=run_name(request),
        scheduler=scheduler,
        launcher=launcher,
        nodes=nodes,
        ranks_per_node=ranks,
        ranks_per_device=ranks_per_device,
        devices=request.devices or _device_mode(request, site, unit, ranks, len(visible)),
        device_unit=unit,
        vendor=vendor if visible else None,
        visibility=site.file.devices.visibility or VISIBILITY.get(vendor or ""),
        all_devices=visible,
        partition=queue.partition,
        qos=queue.qos,
        hosts=hosts,
        part_of_allocation=part,
        whole_nodes=_whole_nodes(allocation, topology),
        cores_unknown=not _whole_nodes(allocation, topology) and (nodes > 1 or not _has_cores(allocation, topology)),
        counted_cpus=_counted_cpus(allocation, offer, len(visible), ranks, scheduler),
        remarks=(*told, *remarks, *queue.remarks),
    )


def _devices(
    request: Request, seen: tuple[int, ...], topology: Topology, offer: PartitionOffer | None
) -> tuple[tuple[int, ...], list[Finding]]:
    """Numbers of the devices that each node of the job has, and remarks about them."""
    asked = request.gpus_per_node
    there = len(seen) if topology.cores else offer.gpus_per_node if offer else None
    if asked is not None and asked < 0:
        raise UsageError(f"--gpus-per-node {asked}", hint="give 0 or more")
    if asked is not None and there is not None and asked > there:
        raise UsageError(f"--gpus-per-node {asked}, but a node has {there}", hint="ask for fewer, or another partition")
    if topology.cores:
        return seen[:asked], []
    if asked is None and offer is None:
        return (), []
    count = asked if asked is not None else there or 0
    remarks = []
    where = f"partition {offer.name}" if offer and offer.name else "the scheduler"
    if offer is not None and offer.mixed:
        differ = f"the nodes of {where} differ ({_kinds_text(offer)}): the plan uses only what all of them have"
        remarks.append(Finding("nodes-differ", "warning", differ, "--directive --constraint=FEATURE chooses"))
    if offer is not None and offer.gpus_per_node and asked is None:
        text = f"{where} offers {offer.gpus_per_node} devices per node: the job requests them, with one rank for each"
        remarks.append(
            Finding("devices-offered", "note", text, "--gpus-per-node N requests another number, 0 requests none")
        )
    if offer is not None and offer.gpus_per_node and asked == 0:
        text = f"the job requests no device, but its nodes have {offer.gpus_per_node}"
        remarks.append(Finding("devices-unused", "warning", text, "leave --gpus-per-node 0 out to use them"))
    return tuple(range(count)), remarks


def _kinds_text(offer: PartitionOffer) -> str:
    """Text such as `8 nodes of 64 CPUs and 4 a100`."""
    return ", ".join(
        f"{counted(kind.nodes, 'node')} of {counted(kind.cpus, 'CPU')}"
        + "".join(f" and {count} {name or 'GPUs'}" for name, count in kind.gpus)
        for kind in offer.kinds
    )


def _counted_cpus(
    allocation: Allocation | None, offer: PartitionOffer | None, devices: int, ranks: int, scheduler: str
) -> int | None:
    """CPUs per rank by the scheduler's count: of the allocation, or the job's share of an offered node.

    Without devices only PBS gets the number. It gives one CPU per node by default, and lets two jobs use the same CPUs.
    """
    if allocation is not None:
        return max(1, allocation.cpus_per_node // ranks) if allocation.cpus_per_node else None
    if offer is None or not (devices or scheduler == "pbs"):
        return None
    shares = [kind.cpus * devices // kind.gpus[0][1] if devices and kind.gpus else kind.cpus for kind in offer.kinds]
    return max(1, min(shares) // ranks)  # fits every node: a rank with more CPUs would exclude some nodes


def _queue(request: Request, site: Site, allocation: Allocation | None, scheduler: str, nodes: int) -> QueueChoice:
    """The queue of the job. Inside an allocation, and without a scheduler, there is no choice."""
    if allocation is not None or scheduler == "none" or scheduler != site.file.scheduler.kind:
        partition = request.partition or site.file.scheduler.default_partition
        return QueueChoice(partition=partition, qos=request.qos)
    return choose_queue(request, site, nodes)


def _whole_nodes(allocation: Allocation | None, topology: Topology) -> bool:
    """Whether the job has every node completely, according to the scheduler."""
    if allocation is None or allocation.whole_nodes is True:
        return True
    return allocation.whole_nodes is not False and _has_cores(allocation, topology)


def _has_cores(allocation: Allocation | None, topology: Topology) -> bool:
    """Whether the job may use all cores that are visible here, by the scheduler's count."""
    counted_cpus = allocation.cpus_per_node if allocation else None
    return counted_cpus is None or counted_cpus >= len(topology.usable_cores())


def device_numbers(topology: Topology, unit: str, tiles_per_card: int) -> tuple[int, ...]:
    """Numbers of the devices in the unit that a framework counts."""
    if unit == "card" and any(device.tile is not None for device in topology.devices):
        return tuple(sorted({device.card for device in topology.devices}))
    return tuple(device.index for device in topology.devices)


def _scheduler(request: Request, site: Site, allocation: Allocation | None) -> str:
    name = request.scheduler or (allocation.scheduler if allocation else site.file.scheduler.kind)
    get_scheduler(name)
    if allocation and request.scheduler and request.scheduler not in {allocation.scheduler, "none"}:
        raise UsageError(
            f"--scheduler {request.scheduler}, but this is a job of {allocation.scheduler} ({allocation.job_id})",
            hint="leave --scheduler out",
        )
    return name


def _site_launcher(site: Site, scheduler: str) -> str:
    """The site's launcher if it fits the scheduler, otherwise the scheduler's usual one."""
    kind = site.file.launcher.kind
    if scheduler == "none":
        return "local"
    if kind == "local" or kind not in launcher_names():
        return _LAUNCHER_OF[scheduler]
    if scheduler != site.file.scheduler.kind and site.file.scheduler.kind != "none":
        return _LAUNCHER_OF[scheduler]
    return kind


def _nodes(request: Request, allocation: Allocation | None, avoid: tuple[str, ...]) -> tuple[int, str | None, bool]:
    if request.nodes is not None and request.nodes < 1:
        raise UsageError(f"--nodes {request.nodes}", hint="give 1 or more")
    if request.hosts:
        wanted = expand_hostlist(request.hosts)
        if allocation:
            full = {host.partition(".")[0]: host for host in allocation.hosts}  # PBS lists full names
            wanted = tuple(host if host in allocation.hosts else full.get(host, host) for host in wanted)
            foreign = [host for host in wanted if host not in allocation.hosts]
            if foreign:
                raise UsageError(
                    f"--hosts: {foreign[0]} is not in this job's allocation",
                    hint=f"the job has {fold_hostlist(allocation.hosts)}",
                )
            chosen = frozenset(wanted)  # in the order of the allocation, in which launchers number the nodes
            wanted = tuple(host for host in allocation.hosts if host in chosen)
        if request.nodes is not None and request.nodes != len(wanted):
            raise UsageError(
                f"--nodes {request.nodes}, but --hosts names {len(wanted)}",
                hint="leave --nodes out: the hosts are counted",
            )
        part = allocation is not None and len(wanted) < len(allocation.hosts)
        return len(wanted), fold_hostlist(wanted), part
    if allocation is None:
        return request.nodes or 1, None, False
    have = len(allocation.hosts)
    nodes = request.nodes or have - request.spares
    if request.spares and nodes < 1:
        raise UsageError(
            f"--spares {request.spares}, but the allocation has {have} nodes",
            hint="allocate more nodes, or ask for fewer spares",
        )
    if nodes > have:
        raise UsageError(
            f"--nodes {nodes}, but the allocation ({allocation.scheduler} job {allocation.job_id}) has {have}",
            hint="ask for fewer, or submit a larger job",
        )
    return nodes, fold_hostlist(choose_hosts(allocation.hosts, nodes, avoid)), nodes < have


def choose_hosts(hosts: tuple[str, ...], count: int, avoid: Container[str] = ()) -> tuple[str, ...]:
    """The first `count` hosts that are not to be avoided, then hosts to avoid if there are too few others.

    The order is that of the allocation, because launchers always number nodes in this order.
    """
    good = [host for host in hosts if host not in avoid][:count]
    rest = [host for host in hosts if host in avoid][: count - len(good)]
    chosen = {*good, *rest}
    return tuple(host for host in hosts if host in chosen)


def _ranks_per_node(
    request: Request, devices: tuple[int, ...], ranks_per_device: int, allocation: Allocation | None, site: Site
) -> tuple[int, list[Finding]]:
    asked = request.ranks_per_node
    if asked is not None and asked < 1:
        raise UsageError(f"--ranks-per-node {asked}", hint="give 1 or more")
    tasks = allocation.tasks_per_node if allocation else None
    if asked is None and not devices and allocation and allocation.uneven_tasks and request.nodes is None:
        made = ", ".join(str(count) for count in allocation.uneven_tasks[:8])
        raise UsageError(
            f"the allocation was made for {sum(allocation.uneven_tasks)} tasks, not the same number on each node: "
            f"{made}",
            hint=f"give --ranks-per-node {min(allocation.uneven_tasks)}, or allocate with --ntasks-per-node",
        )
    if asked is None and devices:
        asked = len(devices) * ranks_per_device
    if asked is None:
        asked = tasks or 1
    if devices and asked > len(devices) * ranks_per_device and not _preset_allows(request, site, asked):
        raise UsageError(
            f"{asked} ranks per node, but a node has {counted(len(devices), 'device')}",
            hint="add --ranks-per-device N to share devices, or ask for fewer ranks",
        )
    if tasks is not None and request.ranks_per_node is not None and asked > tasks:
        raise UsageError(
            f"--ranks-per-node {asked}, but the allocation was made for {tasks} tasks per node",
            hint="ask for fewer ranks, or allocate with as many tasks",
        )
    remarks = []
    if tasks is not None and asked > tasks:
        remarks.append(
            Finding("tasks-per-node", "note", f"the allocation was made for {tasks} tasks per node; using {asked}")
        )
    if devices and asked < len(devices) and RAY not in request.options:
        idle = len(devices) - asked
        remarks.append(Finding("idle-devices", "note", f"{idle} of {len(devices)} devices per node stay idle"))
    return asked, remarks


def _device_mode(
    request: Request, site: Site, unit: Literal["tile", "card"], ranks: int, devices: int
) -> Literal["all", "one"]:
    """Device visibility of the ranks.

    Ranks that share a device see only this device, so that any script finds it as number 0. A preset of the site for
    such ranks (Aurora's four streamers of a tile) was written for programs that see all devices.
    """
    share, presets = request.ranks_per_device or 1, site.file.binding.presets
    by_site = any(preset.name == request.cpu_bind for preset in presets)
    if request.cpu_bind == "auto":
        by_site = preset_for_ranks(presets, ranks, unit, devices=devices, ranks_per_device=share) is not None
    return "one" if share > 1 and not by_site else site.file.devices.mode


def _preset_allows(request: Request, site: Site, ranks: int) -> bool:
    """Whether a preset puts this many ranks on the devices, such as 48 ranks on 12 tiles."""
    presets = site.file.binding.presets
    if request.cpu_bind == "auto":
        return any(preset.default and preset.ranks_per_node == ranks for preset in presets)
    return any(preset.name == request.cpu_bind and preset.ranks_per_node == ranks for preset in presets)


def run_name(request: Request) -> str:
    """The requested name, or a short one from the script or command that is safe for files and every scheduler."""
    if request.name:
        return request.name
    last = _telling_word(request.command).rsplit("/", 1)[-1]
    stem = last.removesuffix(".py").removesuffix(".sh")
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in stem).strip("-.")
    return (safe or "run")[:15].strip("-.") or "run"


def _telling_word(command: tuple[str, ...]) -> str:
    """The argument that distinguishes this run from others: the script, not the interpreter in front of it."""
    first = command[0].rsplit("/", 1)[-1] if command else "run"
    if first.startswith("python"):
        return next((word for word in command[1:] if word.endswith(".py")), first)
    return first
