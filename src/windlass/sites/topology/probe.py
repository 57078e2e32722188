"""The node that this process runs on, from /sys, /proc and /dev. The only part of the topology with input.

Never fails: what is hidden, missing or odd is left out or takes a calm default, and a binding made of less knowledge
is a coarser one. Runs no command and loads no library, so it is quick enough for every start.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from windlass.model.topology import Device, Topology, Vendor
from windlass.sites.topology.probe_cpus import AllowedBy, probe_allowed, probe_cores
from windlass.sites.topology.probe_devices import SysReaders, probe_devices
from windlass.sites.topology.probe_nics import probe_nics
from windlass.sites.topology.sysfs import SysReader, properties


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
    sys, proc = SysReader(sys_root), SysReader(proc_root)
    cores = probe_cores(sys, proc)
    node = Topology(
        arch=arch or os.uname().machine,
        cores=cores,
        devices=probe_devices(SysReaders(sys=sys, proc=proc, dev=SysReader(dev_root)), vendor),
        nics=probe_nics(sys),
        memory_bytes=_memory_bytes(sys, proc),
        probed=True,
    )
    known = set(node.cpus)
    allowed = tuple(cpu for cpu in probe_allowed(sys, proc, allowed_by) if cpu in known)
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


def _memory_bytes(sys: SysReader, proc: SysReader) -> int:
    """The node's memory, or the control group's limit where that is lower."""
    words = properties(proc.text("meminfo"), ":").get("MemTotal", "").split()
    total = int(words[0]) * 1024 if words and words[0].isdecimal() else 0
    limits = [limit for limit in _memory_limits(sys, proc) if limit > 0]
    return min([total, *limits]) if total else min(limits, default=0)


def _memory_limits(sys: SysReader, proc: SysReader) -> list[int]:
    found: list[int] = []
    for line in proc.text("self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "":
            found.append(sys.number(f"fs/cgroup{path.rstrip('/')}/memory.max") or 0)
        elif "memory" in controllers.split(","):
            found.append(sys.number(f"fs/cgroup/memory{path.rstrip('/')}/memory.limit_in_bytes") or 0)
    return found
