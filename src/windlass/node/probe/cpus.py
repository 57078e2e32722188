"""Cores, caches, NUMA domains and the CPUs that this job may use, from /sys and /proc.

`SysReader` reads files below /sys and /proc.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

from windlass.node.sys.text import CpuListError, cpus_of
from windlass.node.sys.tools import text_of

_PCI = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_DIGITS = re.compile(r"(\d+)")


class SysReader:
    """A directory of small text files. Paths are relative, with slashes. No method raises for a file's content."""

    def __init__(self, root: str) -> None:
        self._root = root

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def text(self, name: str) -> str:
        """Return the file's stripped text. Empty if it cannot be read."""
        return text_of(f"{self._root}/{name}")

    def number(self, name: str) -> int | None:
        """Return the file's number, decimal or with a 0x prefix."""
        try:
            return int(self.text(name), 0)
        except ValueError:
            return None

    def cpus(self, name: str) -> tuple[int, ...]:
        """Return the file's CPU list. Empty if it is not a list."""
        return cpulist_or_none(self.text(name))

    def names(self, name: str) -> tuple[str, ...]:
        """Return the names in a directory in natural order (`cxi2` before `cxi10`). Empty if there is no directory."""
        try:
            return tuple(sorted(os.listdir(f"{self._root}/{name}"), key=human_order))
        except OSError:
            return ()

    def exists(self, name: str) -> bool:
        return os.path.exists(f"{self._root}/{name}")

    def target(self, name: str) -> str:
        """Return the last component of a link's target (a driver's name). Empty if it is not a link."""
        try:
            return os.path.basename(os.readlink(f"{self._root}/{name}"))
        except OSError:
            return ""

    def pci_address(self, name: str) -> str:
        """Return the address of the nearest PCI device in the real path. Virtio and RDMA devices are below one."""
        if not self.exists(name):
            return ""
        real = os.path.realpath(f"{self._root}/{name}")
        return next((part for part in reversed(real.split("/")) if _PCI.match(part)), "")


def cpulist_or_none(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list in the kernel's format. Empty if it is not a list."""
    try:
        return cpus_of(text)
    except CpuListError:
        return ()


def human_order(name: str) -> tuple[tuple[int, int | str], ...]:
    """Return a sort key that treats digits as numbers."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name))


def pci_order(address: str) -> tuple[int, ...]:
    """Return a sort key for PCI addresses: domain, bus, device, function, all hexadecimal."""
    try:
        return tuple(int(part, 16) for part in re.split(r"[:.]", address))
    except ValueError:
        return (1 << 32,)


def properties(text: str, separator: str | None = None) -> dict[str, str]:
    """Parse lines of `name value` (or `name: value` with a separator) into a mapping."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(separator) if separator else line.partition(" ")
        found[name.strip()] = value.strip()
    return found


AllowedBy = Literal["mask", "cgroup"]
_CPU = "devices/system/cpu"
_NODE = "devices/system/node"
_SLURM_JOB = re.compile(r"^job_\d+$")

Core = dict[str, Any]
"""`cpus`, `socket`, `numa` and `l3`: the fields of `model.topology.Core`."""


def probe_cores(sys: SysReader, proc: SysReader) -> tuple[Core, ...]:
    """Return every online core.

    Some containers hide /sys or fake a CPU count, so that /sys shows no CPU that this process may use. Then the result
    has only the CPUs in this process's mask.
    """
    mask = _mask(proc)
    online = sys.cpus(f"{_CPU}/online") or _cpu_folders(sys) or mask
    if mask and not set(mask) & set(online):
        online = mask
    numa_of = _numa_of_cpu(sys)
    known = set(online)
    cache_of = _caches(sys, online)
    cores: list[Core] = []
    seen: set[int] = set()
    for cpu in online:
        if cpu in seen:
            continue
        threads = tuple(sorted({cpu, *_siblings(sys, cpu)} & known - seen))
        seen.update(threads)
        numa = numa_of.get(cpu, 0)
        package = sys.number(f"{_CPU}/cpu{cpu}/topology/physical_package_id")
        socket = numa if package is None or package < 0 else package
        cores.append({"cpus": threads, "socket": socket, "numa": numa, "l3": cache_of.get(cpu, -1 - numa)})
    return _numbered(cores)


def probe_allowed(sys: SysReader, proc: SysReader, allowed_by: AllowedBy) -> tuple[int, ...]:
    """Return the CPUs that the job may use. Empty if unknown.

    `mask` means the CPUs of this process. A shell inside a job step is often bound to a single core although the job
    owns the whole node. `cgroup` means the CPUs of the job's control group.
    """
    group = _cgroup_cpus(sys, proc)
    return (group or _mask(proc)) if allowed_by == "cgroup" else (_mask(proc) or group)


def _mask(proc: SysReader) -> tuple[int, ...]:
    return cpulist_or_none(properties(proc.text("self/status"), ":").get("Cpus_allowed_list", ""))


def _cgroup_cpus(sys: SysReader, proc: SysReader) -> tuple[int, ...]:
    """Return the cpuset of this process's control group.

    Version 1 comes first, because it holds the cpusets if both versions are mounted.
    """
    unified = ""
    for line in proc.text("self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpuset" in controllers.split(","):
            found = _upwards(sys, "fs/cgroup/cpuset", path, ("cpuset.effective_cpus", "cpuset.cpus"))
            if found:
                return found
        if number == "0" and not controllers:
            unified = path
    if not unified:
        return ()
    return _upwards(sys, "fs/cgroup", unified, ("cpuset.cpus.effective", "cpuset.cpus")) or _upwards(
        sys, "fs/cgroup/unified", unified, ("cpuset.cpus.effective", "cpuset.cpus")
    )


def _upwards(sys: SysReader, mount: str, path: str, files: tuple[str, ...]) -> tuple[int, ...]:
    """Return the first cpuset on the way up.

    A container may show only the top of the tree that /proc names. Slurm has a group for each step and task below the
    job's group. The job's group is the relevant one.
    """
    parts = [part for part in path.split("/") if part not in {"", "..", "."}]
    job = next((index for index, part in enumerate(parts) if _SLURM_JOB.match(part)), None)
    if job is not None:
        parts = parts[: job + 1]
    while True:
        folder = "/".join([mount, *parts])
        for file in files:
            if found := sys.cpus(f"{folder}/{file}"):
                return found
        if not parts:
            return ()
        parts.pop()


def _cpu_folders(sys: SysReader) -> tuple[int, ...]:
    numbers = (name.removeprefix("cpu") for name in sys.names(_CPU) if name.startswith("cpu"))
    return tuple(sorted(int(number) for number in numbers if number.isdecimal()))


def _siblings(sys: SysReader, cpu: int) -> tuple[int, ...]:
    """Return the hardware threads of the core. The newer file name comes first."""
    folder = f"{_CPU}/cpu{cpu}/topology"
    return sys.cpus(f"{folder}/core_cpus_list") or sys.cpus(f"{folder}/thread_siblings_list")


def _numa_of_cpu(sys: SysReader) -> dict[int, int]:
    """Return the NUMA domain of each CPU.

    Memory-only domains (HBM, GPU memory of a superchip) have no CPU and do not appear.
    """
    found: dict[int, int] = {}
    for name in sys.names(_NODE):
        number = name.removeprefix("node")
        if name.startswith("node") and number.isdecimal():
            found.update((cpu, int(number)) for cpu in sys.cpus(f"{_NODE}/{name}/cpulist"))
    return found


def _caches(sys: SysReader, online: tuple[int, ...]) -> dict[int, int]:
    """Return the last-level cache of each CPU, named by its first CPU. One read per cache, not per CPU."""
    found: dict[int, int] = {}
    for cpu in online:
        if cpu in found:
            continue
        shared = _shared_l3(sys, cpu)
        for other in shared:
            found[other] = shared[0]
    return found


def _shared_l3(sys: SysReader, cpu: int) -> tuple[int, ...]:
    folder = f"{_CPU}/cpu{cpu}/cache"
    for index in ("index3", "index2", "index4"):
        if sys.text(f"{folder}/{index}/level") == "3":
            return sys.cpus(f"{folder}/{index}/shared_cpu_list")
    return ()


def _numbered(cores: list[Core]) -> tuple[Core, ...]:
    """Renumber the caches from 0 in the order of their cores."""
    order: dict[int, int] = {}
    for core in cores:
        order.setdefault(core["l3"], len(order))
    return tuple(dict(core, l3=order[core["l3"]]) for core in cores)
