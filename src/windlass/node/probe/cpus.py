"""Cores, caches, NUMA domains and the CPUs that this job may use, from /sys and /proc."""

from __future__ import annotations

import re
from typing import Any, Literal

from windlass.node.probe.sysfs import SysReader, cpulist_or_none, properties

AllowedBy = Literal["mask", "cgroup"]
_CPU = "devices/system/cpu"
_NODE = "devices/system/node"
_SLURM_JOB = re.compile(r"^job_\d+$")

Core = dict[str, Any]
"""`cpus`, `socket`, `numa` and `l3`: the fields of `model.topology.Core`."""


def probe_cores(sys: SysReader, proc: SysReader) -> tuple[Core, ...]:
    """Every online core. Where /sys is hidden, or shows CPUs of which this process may use none (some containers fake
    their own count), the CPUs of this process's mask are all that is known."""
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
    """CPUs that the job may use; empty where nothing says so.

    `mask` is what this process may use. A shell inside a job step is often bound to a single core while the job owns
    the whole node: `cgroup` is what the job's control group allows.
    """
    group = _cgroup_cpus(sys, proc)
    return (group or _mask(proc)) if allowed_by == "cgroup" else (_mask(proc) or group)


def _mask(proc: SysReader) -> tuple[int, ...]:
    return cpulist_or_none(properties(proc.text("self/status"), ":").get("Cpus_allowed_list", ""))


def _cgroup_cpus(sys: SysReader, proc: SysReader) -> tuple[int, ...]:
    """The cpuset of this process's control group, version 1 first: where both are mounted, version 1 holds cpusets."""
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
    """The first cpuset on the way up: a container may show only the top of the tree that /proc names.

    Slurm has a group for each step and task below the job's: the job's is the one that counts.
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
    """Hardware threads of the core; the newer name first."""
    folder = f"{_CPU}/cpu{cpu}/topology"
    return sys.cpus(f"{folder}/core_cpus_list") or sys.cpus(f"{folder}/thread_siblings_list")


def _numa_of_cpu(sys: SysReader) -> dict[int, int]:
    """Domain of each CPU. Domains of pure memory (HBM, GPU memory of a superchip) have no CPU and do not appear."""
    found: dict[int, int] = {}
    for name in sys.names(_NODE):
        number = name.removeprefix("node")
        if name.startswith("node") and number.isdecimal():
            found.update((cpu, int(number)) for cpu in sys.cpus(f"{_NODE}/{name}/cpulist"))
    return found


def _caches(sys: SysReader, online: tuple[int, ...]) -> dict[int, int]:
    """Last-level cache of each CPU, named by its first CPU. One read per cache, not per CPU."""
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
    """Caches renumbered from 0 in the order of their cores."""
    order: dict[int, int] = {}
    for core in cores:
        order.setdefault(core["l3"], len(order))
    return tuple(dict(core, l3=order[core["l3"]]) for core in cores)
