"""The topology of a node: from its site's description, for plans made on another machine, and from a probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.counts import format_cpulist, parse_cpulist
from windlass.errors import ConfigError
from windlass.model.finding import Finding
from windlass.model.site import Site
from windlass.model.topology import Core, Device, DeviceSpec, DeviceUnit, DomainSpec, Nic, NodeSpec, Topology, Vendor
from windlass.node.probe.cpus import AllowedBy
from windlass.node.probe.main import read_node
from windlass.sites.topology.split import fabric_nics, in_unit

_GB = 1_000_000_000


def topology_from_spec(
    node: NodeSpec, devices: DeviceSpec, *, unit: DeviceUnit | None = None, where: str = "node"
) -> Topology:
    """The documented node, with its devices counted in `unit` (None: the hardware's default).

    A description without cores gives an empty topology, and ranks of such a node are left unbound. Raises `ConfigError`
    that names `where` for a description that contradicts itself.
    """
    domains = node.domains or _single_domain(node)
    caches = tuple(parse_cpulist(text) for text in node.l3)
    cores = _cores(node, domains, caches, where)
    return in_unit(
        Topology(
            arch=node.arch,
            cores=cores,
            devices=_devices(node, devices, domains, cores, where),
            nics=_nics(node, domains),
            reserved=_inside(parse_cpulist(node.reserved), cores, f"{where}: reserved"),
            memory_bytes=int((node.memory_gb or 0) * _GB),
            nic_by_core=node.nic_by_core,
        ),
        unit or devices.unit,
    )


def complete_probe(probed: Topology, described: Topology) -> Topology:
    """The probed node, completed from the description of the same hardware.

    /sys does not show the system's reserved cores, and some drivers do not report the NUMA domain of a device. If the
    two disagree about the hardware itself (number of CPUs), the description is of another node and is not used.
    """
    if set(probed.cpus) - set(described.cpus):
        return probed
    known = {device.index: device for device in described.devices} if probed.unit == described.unit else {}
    same_cores = {core.cpus: core.l3 for core in probed.cores} == {core.cpus: core.l3 for core in described.cores}
    devices = tuple(_fill(device, known.get(device.index), with_l3=same_cores) for device in probed.devices)
    reserved = tuple(sorted({*probed.reserved, *described.reserved} & set(probed.cpus)))
    return msgspec.structs.replace(
        probed, devices=devices, reserved=reserved, nic_by_core=probed.nic_by_core or described.nic_by_core
    )


def spec_of_topology(seen: Topology) -> tuple[tuple[NodeSpec, DeviceSpec] | None, str]:
    """The description of a probed node, with devices counted in cards.

    `topology_from_spec` gives the same node again. Returns None and the reason if a description cannot express the
    node.
    """
    cards = in_unit(seen, "card")
    if not seen.cores:
        return None, "its cores could not be read"
    if any(device.numa not in seen.numas for device in cards.devices):
        return None, "the NUMA domains of its devices are unknown"
    threads = {len(core.cpus) for core in seen.cores}
    tiles = {device.tiles for device in cards.devices}
    if len(threads) != 1 or len(tiles) > 1 or len({device.vendor for device in cards.devices}) > 1:
        return None, "its cores or its devices differ"
    nics = fabric_nics(seen)
    for adjacent in (False, True):
        node = NodeSpec(
            arch=seen.arch,
            cores=len(seen.cores),
            threads_per_core=max(threads),
            adjacent_threads=adjacent,
            domains=tuple(_domain_of(cards, nics, numa) for numa in seen.numas),
            l3=_caches_of(seen),
            tiles_per_card=max(tiles, default=1),
            nics=tuple(nic.name for nic in nics if nic.numa not in seen.numas),
            nic_gbits=nics[0].speed_mbits / 1000 or None if nics else None,
        )
        devices = _device_spec_of(cards)
        if _alike(topology_from_spec(node, devices), cards):
            return (node, devices), ""
    return None, "a site file cannot describe the numbering of its CPUs"


def _domain_of(seen: Topology, nics: tuple[Nic, ...], numa: int) -> DomainSpec:
    cores = [core for core in seen.cores if core.numa == numa]
    return DomainSpec(
        cpus=format_cpulist(cpu for core in cores for cpu in core.cpus),
        socket=cores[0].socket,
        devices=tuple(device.index for device in seen.devices if device.numa == numa),
        nics=tuple(nic.name for nic in nics if nic.numa == numa),
    )


def _caches_of(seen: Topology) -> tuple[str, ...]:
    """CPU lists of the last-level caches, or none if each NUMA domain has exactly one."""
    caches: dict[int, list[int]] = {}
    for core in seen.cores:
        caches.setdefault(core.l3, []).extend(core.cpus)
    if len({(core.numa, core.l3) for core in seen.cores}) == len(caches) == len(seen.numas):
        return ()
    return tuple(format_cpulist(cpus) for cpus in caches.values())


def _device_spec_of(cards: Topology) -> DeviceSpec:
    if not cards.devices:
        return DeviceSpec()
    first = cards.devices[0]
    same = len({(device.name, device.memory_bytes) for device in cards.devices}) == 1
    memory = first.memory_bytes / _GB if same and first.memory_bytes else None
    return DeviceSpec(vendor=first.vendor, name=first.name if same else "", memory_gb=memory)


def _alike(described: Topology, seen: Topology) -> bool:
    """Whether ranks would be bound in the same way. Numbers of domains and caches are only names."""

    def shape(node: Topology) -> tuple[object, ...]:
        numa = {number: index for index, number in enumerate(node.numas)}
        caches = {number: index for index, number in enumerate(dict.fromkeys(core.l3 for core in node.cores))}
        return (
            [(core.cpus, core.socket, numa[core.numa], caches[core.l3]) for core in node.cores],
            [(d.index, d.card, numa.get(d.numa or 0), d.l3 if d.l3 is None else caches[d.l3]) for d in node.devices],
        )

    return shape(described) == shape(seen)


def _fill(device: Device, known: Device | None, *, with_l3: bool) -> Device:
    if known is None or known.vendor != device.vendor:
        return device
    numa = known.numa if device.numa is None else device.numa
    l3 = known.l3 if device.l3 is None and with_l3 and numa == known.numa else device.l3
    return msgspec.structs.replace(device, numa=numa, l3=l3)


def _single_domain(node: NodeSpec) -> tuple[DomainSpec, ...]:
    """Describe a node as one domain if only the number of cores is known."""
    if node.cores <= 0:
        return ()
    return (DomainSpec(cpus=f"0-{node.cores * node.threads_per_core - 1}"),)


def _cores(
    node: NodeSpec, domains: tuple[DomainSpec, ...], caches: tuple[tuple[int, ...], ...], where: str
) -> tuple[Core, ...]:
    """Cores of all domains.

    Linux usually numbers first threads before second ones, so siblings are half a domain apart.
    """
    threads = max(1, node.threads_per_core)
    cache_of = {cpu: index for index, cpus in enumerate(caches) for cpu in cpus}
    seen: dict[int, int] = {}
    cores: list[Core] = []
    for numa, domain in enumerate(domains):
        cpus = parse_cpulist(domain.cpus)
        place = f"{where}: domain {numa} ({domain.cpus})"
        if len(cpus) % threads:
            raise ConfigError(
                f"{place}: {len(cpus)} CPUs do not make cores of {threads} threads",
                hint="list all hardware threads of the domain, as in 0-15,64-79",
            )
        for cpu in cpus:
            if seen.setdefault(cpu, numa) != numa:
                raise ConfigError(
                    f"{place}: CPU {cpu} is in domain {seen[cpu]} too", hint="give each CPU to one domain"
                )
        count = len(cpus) // threads
        for position in range(count):
            first, step = (position * threads, 1) if node.adjacent_threads else (position, count)
            own = tuple(cpus[first + step * thread] for thread in range(threads))
            l3 = cache_of.get(own[0], len(caches) + numa) if caches else numa
            cores.append(Core(cpus=own, socket=domain.socket, numa=numa, l3=l3))
    if node.cores and len(cores) != node.cores:
        raise ConfigError(
            f"{where}: its domains hold {len(cores)} cores, but cores = {node.cores}",
            hint="domains list every hardware thread; cores counts physical cores",
        )
    return tuple(sorted(cores, key=lambda core: core.id))


def _devices(
    node: NodeSpec, spec: DeviceSpec, domains: tuple[DomainSpec, ...], cores: tuple[Core, ...], where: str
) -> tuple[Device, ...]:
    if spec.vendor is None:
        return ()
    tiles = max(1, node.tiles_per_card)
    per_entry = tiles if spec.unit == "card" else 1
    memory = int((spec.memory_gb or 0) * _GB) // per_entry
    found: dict[int, Device] = {}
    for numa, domain in enumerate(domains):
        caches = sorted({core.l3 for core in cores if core.numa == numa})
        for position, number in enumerate(domain.devices):
            l3 = caches[position] if len(caches) == len(domain.devices) > 1 else None
            for index in range(number * per_entry, (number + 1) * per_entry):
                if index in found:
                    raise ConfigError(f"{where}: device {number} is listed twice", hint="each device has one domain")
                found[index] = Device(
                    index=index,
                    vendor=spec.vendor,
                    name=spec.name,
                    card=index // tiles,
                    tile=index % tiles if tiles > 1 else None,
                    numa=numa,
                    l3=l3,
                    memory_bytes=memory,
                )
    if sorted(found) != list(range(len(found))):
        raise ConfigError(
            f"{where}: devices {sorted(found)} are not numbered from 0 without a gap",
            hint="number them 0, 1, 2 …, each once",
        )
    return tuple(found[index] for index in sorted(found))


def _nics(node: NodeSpec, domains: tuple[DomainSpec, ...]) -> tuple[Nic, ...]:
    speed = int((node.nic_gbits or 0) * 1000)
    placed = [(name, numa) for numa, domain in enumerate(domains) for name in domain.nics]
    near = [Nic(name=name, numa=numa, speed_mbits=speed) for name, numa in placed]
    known = {nic.name for nic in near}
    far = [Nic(name=name, speed_mbits=speed) for name in node.nics if name not in known]
    return tuple(sorted([*near, *far], key=lambda nic: (len(nic.name), nic.name)))


def _inside(cpus: tuple[int, ...], cores: tuple[Core, ...], where: str) -> tuple[int, ...]:
    """The CPUs, all of which must exist if the node is described."""
    strange = set(cpus) - {cpu for core in cores for cpu in core.cpus} if cores else set()
    if strange:
        raise ConfigError(
            f"{where}: the node has no CPU {format_cpulist(strange)}", hint="count CPUs as `lscpu -e` does"
        )
    return cpus


def probe_topology(
    *,
    sys_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
    dev_root: Path = Path("/dev"),
    vendor: Vendor | None = None,
    allowed_by: AllowedBy = "mask",
    arch: str | None = None,
) -> Topology:
    """The topology of this node in this job, with devices counted in tiles.

    `vendor` restricts the search to devices of one vendor. `allowed_by` selects the CPUs to use: those of this process
    (`mask`) or of the whole job (`cgroup`).
    """
    found = read_node((str(sys_root), str(proc_root), str(dev_root)), allowed_by=allowed_by, vendor=vendor)
    return topology_of(found if arch is None else {**found, "arch": arch})


def topology_of(hardware: dict[str, Any]) -> Topology:
    """The topology from the result of `node.probe.main.read_node`. Raises `msgspec.ValidationError`."""
    node = msgspec.convert({**hardware, "probed": True}, Topology)
    known = set(node.cpus)
    allowed = tuple(cpu for cpu in node.allowed if cpu in known)
    node = _at_home(msgspec.structs.replace(node, allowed=allowed))
    return msgspec.structs.replace(node, devices=_with_caches(node))


def _at_home(node: Topology) -> Topology:
    """Put devices and interfaces of a node with a single domain into it, even if the firmware does not report it."""
    if len(node.numas) != 1:
        return node
    return msgspec.structs.replace(
        node,
        devices=tuple(msgspec.structs.replace(device, numa=node.numas[0]) for device in node.devices),
        nics=tuple(msgspec.structs.replace(nic, numa=node.numas[0]) for nic in node.nics),
    )


def _with_caches(node: Topology) -> tuple[Device, ...]:
    """Pair devices with caches if a domain has the same number of both.

    The kernel reports only domains. On an MI250X node each die is attached to one cache of its domain, in the order of
    both.
    """
    caches = {numa: sorted({core.l3 for core in node.cores if core.numa == numa}) for numa in node.numas}
    paired: list[Device] = []
    for device in node.devices:
        mates = [other.index for other in node.devices if other.numa == device.numa]
        near = caches.get(device.numa, []) if device.numa is not None else []
        if 1 < len(near) == len(mates):
            device = msgspec.structs.replace(device, l3=near[mates.index(device.index)])  # noqa: PLW2901
        paired.append(device)
    return tuple(paired)


_DOUBTED = frozenset({"unconfirmed", "community", "derived"})
"""Grades of a map that neither the site nor the vendor has published. A probe of the node overrides it."""


def choose_topology(site: Site, seen: Topology | None) -> tuple[Topology, list[Finding]]:
    """Choose between the site's documented node and the probed node (`seen`).

    Returns the probed node if the site has no documented node, or if that node differs or is not confirmed. Returns an
    unknown node if there is neither.
    """
    described = topology_from_spec(site.file.node, site.file.devices) if site.file.node.domains else None
    if seen is None:
        if described:
            return described, []
        if site.file.scheduler.kind == "none":
            return probe_topology(), []
        return Topology(arch="", cores=()), []
    if described is None:
        return seen, []
    if set(seen.cpus) == set(described.cpus) and len(seen.devices) in {0, len(described.devices)}:
        if seen.devices and site.origin_of("node.domains").grade in _DOUBTED:
            return _seen_over_unconfirmed(site, seen, described)
        return msgspec.structs.replace(described, allowed=seen.allowed, probed=True), []
    text = (
        f"this node has {len(seen.cpus)} CPUs and {len(seen.devices)} devices, but {site.name} is documented with "
        f"{len(described.cpus)} and {len(described.devices)}: using the hardware of this node"
    )
    return complete_probe(seen, described), [Finding("topology-differs", "warning", text, "check --site")]


def _seen_over_unconfirmed(site: Site, seen: Topology, described: Topology) -> tuple[Topology, list[Finding]]:
    """Return the probed node, with a note if a device is not where the catalog's unconfirmed map places it."""
    chosen = in_unit(complete_probe(seen, described), site.file.devices.unit)
    known = {device.index: device.numa for device in described.devices}
    moved = [device for device in chosen.devices if device.numa != known.get(device.index)]
    if not moved:
        return chosen, []
    places = ", ".join(f"{device.index} in {device.numa}" for device in moved)
    text = f"{site.name}'s map of devices and NUMA domains is not confirmed; as seen on this node: device {places}"
    return chosen, [Finding("topology-unconfirmed", "note", text)]
