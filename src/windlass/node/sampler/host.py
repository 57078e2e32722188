"""Measure the node: CPUs, memory and its limit, network, file systems, power, and the ranks' processes.

All values come from files that any user may read. A missing value is None. `root` differs from `/` only in tests.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from windlass.node.sampler.readings import listed, read_number
from windlass.node.sys.tools import text_of

_SECTOR_BYTES = 512
_NO_LIMIT = 1 << 60
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class HostCounters(NamedTuple):
    """Counters that only grow: two samples give a rate. None: this node does not report it."""

    cpu_busy: float | None = None
    cpu_all: float | None = None
    rx_bytes: float | None = None
    tx_bytes: float | None = None
    shared_read: float | None = None
    shared_write: float | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    energy_j: float | None = None


class ProcessUsage(NamedTuple):
    parent: int
    cpu_s: float
    """Including that of its children that have ended."""
    memory_bytes: int


def counters(root: str = "/") -> HostCounters:
    busy, whole = cpu_ticks(text_of(os.path.join(root, "proc/stat")))
    rx, tx = network_bytes(root)
    lustre, nfs = lustre_bytes(root), nfs_bytes(text_of(os.path.join(root, "proc/self/mountstats")))
    shared = [pair for pair in (lustre, nfs) if pair is not None]
    disk = disk_bytes(text_of(os.path.join(root, "proc/diskstats")))
    return HostCounters(
        cpu_busy=busy,
        cpu_all=whole,
        rx_bytes=rx,
        tx_bytes=tx,
        shared_read=sum(pair[0] for pair in shared) if shared else None,
        shared_write=sum(pair[1] for pair in shared) if shared else None,
        disk_read=disk[0] if disk else None,
        disk_write=disk[1] if disk else None,
        energy_j=energy_j(root),
    )


def cpu_ticks(text: str) -> tuple[float | None, float | None]:
    """Return busy and total ticks of `/proc/stat`. Waiting for a disk is not busy."""
    for line in text.splitlines():
        if line.startswith("cpu "):
            fields = [int(word) for word in line.split()[1:9]]
            whole = sum(fields)
            return float(whole - fields[3] - fields[4]), float(whole)
    return None, None


def network_bytes(root: str = "/") -> tuple[float | None, float | None]:
    """Return received and sent bytes.

    Slingshot and InfiniBand devices count traffic that bypasses the kernel. Other devices are counted per interface.
    """
    sums = [0.0, 0.0]
    seen = False
    covered: set[str] = set()
    for kind, rx_name, tx_name, scale in (
        ("cxi", "device/telemetry/hni_sts_rx_ok_octets", "device/telemetry/hni_sts_tx_ok_octets", 1.0),
        ("infiniband", "counters/port_rcv_data", "counters/port_xmit_data", 4.0),
    ):
        folder = os.path.join(root, "sys/class", kind)
        for name in listed(folder):
            ports = [os.path.join(folder, name, "ports", port) for port in listed(os.path.join(folder, name, "ports"))]
            for place in ports or [os.path.join(folder, name)]:
                rx, tx = read_number(os.path.join(place, rx_name)), read_number(os.path.join(place, tx_name))
                if rx is not None and tx is not None:
                    sums[0] += rx * scale
                    sums[1] += tx * scale
                    seen = True
                    covered.add(os.path.realpath(os.path.join(folder, name, "device")))
    net = os.path.join(root, "sys/class/net")
    for name in listed(net):
        device = os.path.join(net, name, "device")
        if not os.path.exists(device) or os.path.realpath(device) in covered:
            continue  # virtual interfaces (lo, bridges, containers), and those whose hardware was counted above
        rx = read_number(os.path.join(net, name, "statistics/rx_bytes"))
        tx = read_number(os.path.join(net, name, "statistics/tx_bytes"))
        if rx is not None and tx is not None:
            sums[0] += rx
            sums[1] += tx
            seen = True
    return (sums[0], sums[1]) if seen else (None, None)


def lustre_bytes(root: str = "/") -> tuple[float, float] | None:
    """Return bytes read and written by Lustre clients.

    In `read_bytes 3 samples [bytes] 4096 1048576 2101248` the sum is the last number.
    """
    found: list[float] = []
    for folder in ("proc/fs/lustre/llite", "sys/fs/lustre/llite", "sys/kernel/debug/lustre/llite"):
        for name in listed(os.path.join(root, folder)):
            text = text_of(os.path.join(root, folder, name, "stats"))
            if text:
                sums = {line.split()[0]: float(line.split()[6]) for line in text.splitlines() if "[bytes]" in line}
                found += [sums.get("read_bytes", 0.0), sums.get("write_bytes", 0.0)]
        if found:
            return sum(found[::2]), sum(found[1::2])
    return None


def nfs_bytes(text: str) -> tuple[float, float] | None:
    """Return bytes read from and written to NFS servers.

    They are the fifth and sixth number of `bytes:` in `/proc/self/mountstats`.
    """
    rows = [line.split()[1:] for line in text.splitlines() if line.strip().startswith("bytes:")]
    rows = [row for row in rows if len(row) >= 6]
    return (sum(float(row[4]) for row in rows), sum(float(row[5]) for row in rows)) if rows else None


def disk_bytes(text: str) -> tuple[float, float] | None:
    """Return bytes read from and written to whole disks, from `/proc/diskstats`."""
    read = written = 0.0
    seen = False
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 9 and re.fullmatch(r"nvme\d+n\d+|sd[a-z]+|vd[a-z]+|xvd[a-z]+", fields[2]):
            read += float(fields[5]) * _SECTOR_BYTES
            written += float(fields[9]) * _SECTOR_BYTES
            seen = True
    return (read, written) if seen else None


def energy_j(root: str = "/") -> float | None:
    """Return the joules of the node since an unspecified start.

    Reads Cray's counter for the whole node, or else the RAPL counters of the packages, which often only root can read.
    """
    cray = read_number(os.path.join(root, "sys/cray/pm_counters/energy"))
    if cray is not None:
        return cray
    folder = os.path.join(root, "sys/class/powercap")
    packages = [name for name in listed(folder) if re.fullmatch(r"(intel|amd)-rapl:\d+", name)]
    values = [read_number(os.path.join(folder, name, "energy_uj")) for name in packages]
    known = [value for value in values if value is not None]
    return sum(known) / 1e6 if known else None


def power_w(root: str = "/") -> float | None:
    """Return the current watts: Cray's value for the node, or else a power sensor that is not an accelerator's."""
    cray = read_number(os.path.join(root, "sys/cray/pm_counters/power"))
    if cray is not None:
        return cray
    folder = os.path.join(root, "sys/class/hwmon")
    for name in listed(folder):
        kind = text_of(os.path.join(folder, name, "name"))
        if kind in ("power_meter", "acpi_power_meter"):
            for file in ("power1_average", "power1_input"):
                value = read_number(os.path.join(folder, name, file))
                if value:
                    return value / 1e6
    return None


def memory(pid: int | None, root: str = "/") -> tuple[int | None, int | None]:
    """Return working set and limit of the innermost control group with a memory limit, or else of the node."""
    if pid is not None:
        for folder, current, stat, inactive, limit in _groups(pid, root):
            most, used = read_number(os.path.join(folder, limit)), read_number(os.path.join(folder, current))
            if most is not None and most < _NO_LIMIT and used is not None:
                match = re.search(r"^%s (\d+)$" % inactive, text_of(os.path.join(folder, stat)), re.MULTILINE)
                return int(used) - (int(match.group(1)) if match else 0), int(most)
    said = dict(re.findall(r"^(\w+):\s+(\d+) kB", text_of(os.path.join(root, "proc/meminfo")), re.MULTILINE))
    if "MemTotal" not in said or "MemAvailable" not in said:
        return None, None
    whole = int(said["MemTotal"]) * 1024
    return whole - int(said["MemAvailable"]) * 1024, whole


def _groups(pid: int, root: str) -> list[tuple[str, str, str, str, str]]:
    """Return directories of the process's memory control groups, innermost first, with their file names."""
    found = []
    for line in text_of(os.path.join(root, "proc/%d/cgroup" % pid)).splitlines():
        number, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if "memory" in controllers.split(","):
            base = os.path.join(root, "sys/fs/cgroup/memory")
            names = ("memory.usage_in_bytes", "memory.stat", "total_inactive_file", "memory.limit_in_bytes")
        elif number == "0" and controllers == "":
            base = os.path.join(root, "sys/fs/cgroup")
            names = ("memory.current", "memory.stat", "inactive_file", "memory.max")
        else:
            continue
        parts = [part for part in path.split("/") if part]
        found += [(os.path.join(base, *parts[:end]), *names) for end in range(len(parts), -1, -1)]
    return found


# Processes of the ranks


def processes(root: str = "/") -> dict[int, ProcessUsage]:
    """Return all visible processes of the node."""
    found: dict[int, ProcessUsage] = {}
    proc = os.path.join(root, "proc")
    for name in listed(proc):
        if name.isdigit():
            text = text_of(os.path.join(proc, name, "stat"))
            fields = text.rpartition(")")[2].split() if text else []
            if len(fields) > 21:
                ticks = sum(float(field) for field in fields[11:15])
                found[int(name)] = ProcessUsage(int(fields[1]), ticks / _TICKS, int(fields[21]) * _PAGE)
    return found


def run_delay_s(pid: int, root: str = "/") -> float | None:
    """Return how long the process's first thread has waited for a core in total. None without kernel support."""
    fields = text_of(os.path.join(root, "proc/%d/task/%d/schedstat" % (pid, pid))).split()
    return int(fields[1]) / 1e9 if len(fields) == 3 and fields[0] != "0" else None


def allowed_cpus(pids: list[int]) -> frozenset[int]:
    """Return the CPUs on which any of these processes may run."""
    found: set[int] = set()
    for pid in pids:
        try:
            found |= os.sched_getaffinity(pid)
        except OSError:
            continue
    return frozenset(found)


def core_seconds(cpus: frozenset[int], text: str) -> tuple[float, float]:
    """Return busy and total seconds of these CPUs, from `/proc/stat`. Time stolen by a hypervisor is not busy."""
    busy = whole = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in cpus:
            ticks = [int(field) for field in fields[:8]]
            whole += sum(ticks)
            busy += sum(ticks[:3]) + sum(ticks[5:7])
    return busy / _TICKS, whole / _TICKS


def tree(first: int, all_of_them: dict[int, ProcessUsage]) -> list[int]:
    """Return a process and all its descendants."""
    below: dict[int, list[int]] = {}
    for pid, process in all_of_them.items():
        below.setdefault(process.parent, []).append(pid)
    found, todo = [], [first] if first in all_of_them else []
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += below.get(pid, ())
    return found
