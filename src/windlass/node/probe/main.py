"""Describe the node of this process: its hardware, the CPUs of the job, and the ports in use.

Never fails. Hidden, missing or invalid values are omitted or get a safe default. A binding with less information is
coarser. The module runs no command and loads no library, so it is quick enough for every start.
"""

from __future__ import annotations

import os
from typing import Any

from windlass.node.probe.cpus import AllowedBy, SysReader, probe_allowed, probe_cores, properties
from windlass.node.probe.devices import SysReaders, Vendor, probe_devices, probe_nics
from windlass.node.sys.messages import node_writer

ROOTS = ("/sys", "/proc", "/dev")


def main(settings: dict[str, Any]) -> int:
    """Probe a node of the allocation from the outside: the CPUs are those of the job."""
    node_writer(settings).send(hardware=read_node(allowed_by="cgroup"), taken_ports=taken_ports(), done=True)
    return 0


def read_node(
    roots: tuple[str, str, str] = ROOTS, *, allowed_by: AllowedBy, vendor: Vendor | None = None
) -> dict[str, Any]:
    """Return the fields of `model.topology.Topology`, from /sys, /proc and /dev. See `sites.topology.described`."""
    sys, proc, dev = map(SysReader, roots)
    return {
        "arch": os.uname().machine,
        "cores": probe_cores(sys, proc),
        "devices": probe_devices(SysReaders(sys, proc, dev), vendor),
        "nics": probe_nics(sys),
        "memory_bytes": _memory_bytes(sys, proc),
        "allowed": probe_allowed(sys, proc, allowed_by),
    }


def taken_ports() -> tuple[int, ...]:
    """Return the ports on which a process of this machine listens."""
    listening = "0A"
    ports: set[int] = set()
    proc = SysReader(ROOTS[1])
    for name in ("tcp", "tcp6"):
        for line in proc.text("net/" + name).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == listening:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return tuple(sorted(ports))


def _memory_bytes(sys: SysReader, proc: SysReader) -> int:
    """Return the node's memory, or the control group's limit if that is lower."""
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
