"""A node's hardware as a `Topology`: what `node.probe` reads, with devices placed near their domain and cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from windlass.model.topology import Device, Topology, Vendor
from windlass.node.probe.cpus import AllowedBy
from windlass.node.probe.main import read_node


def probe_topology(
    *,
    sys_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
    dev_root: Path = Path("/dev"),
    vendor: Vendor | None = None,
    allowed_by: AllowedBy = "mask",
    arch: str | None = None,
) -> Topology:
    """This node as the job sees it, devices counted in tiles. `vendor` looks for devices of one maker only.

    `allowed_by` says whether the CPUs to use are this process's own (`mask`) or the whole job's (`cgroup`).
    """
    found = read_node((str(sys_root), str(proc_root), str(dev_root)), allowed_by=allowed_by, vendor=vendor)
    return topology_of(found if arch is None else {**found, "arch": arch})


def topology_of(hardware: dict[str, Any]) -> Topology:
    """The topology from what `node.probe.main.read_node` returned. Raises `msgspec.ValidationError`."""
    node = msgspec.convert({**hardware, "probed": True}, Topology)
    known = set(node.cpus)
    allowed = tuple(cpu for cpu in node.allowed if cpu in known)
    node = _at_home(msgspec.structs.replace(node, allowed=allowed))
    return msgspec.structs.replace(node, devices=_with_caches(node))


def _at_home(node: Topology) -> Topology:
    """Devices and interfaces of a node with a single domain are in it, even where the firmware does not say so."""
    if len(node.numas) != 1:
        return node
    return msgspec.structs.replace(
        node,
        devices=tuple(msgspec.structs.replace(device, numa=node.numas[0]) for device in node.devices),
        nics=tuple(msgspec.structs.replace(nic, numa=node.numas[0]) for nic in node.nics),
    )


def _with_caches(node: Topology) -> tuple[Device, ...]:
    """Devices paired with caches where a domain has as many of the one as of the other.

    The kernel knows domains only. On an MI250X node each die hangs on one cache of its domain, in the order of both.
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
