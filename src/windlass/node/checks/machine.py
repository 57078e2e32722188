"""Report CPUs, memory and links of a node for comparison with other nodes, and foreign load on it."""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from windlass.node.checks.finding import Finding, fail, not_applicable, ok, warn
from windlass.node.checks.meeting import NET
from windlass.node.sampler import amd, intel, nvidia
from windlass.node.sampler.readings import DeviceReading
from windlass.node.sampler.readings import listed as names_in
from windlass.node.sys.memory import memory_left
from windlass.node.sys.text import binary_size, listed
from windlass.node.sys.tools import MissingError, output_of, text_of

Expected = dict[str, Any]
"""`vendor`, `count` (as frameworks count), `cards`, `memory_bytes`. Empty if the plan has no devices."""

BUSY_SHARE = 0.02
BUSY_BYTES = 1 << 30
LESS_MEMORY = 0.9
_TOOL_S = 5.0


def check_devices(expected: Expected) -> list[Finding]:
    """Check number, memory, errors and clocks of the devices of this node."""
    vendor = expected.get("vendor") or _vendor_here()
    if not vendor:
        return [not_applicable("devices", "no accelerator is expected here, and none is seen")]
    seen, tool, troubles = look(vendor)
    if not tool:
        return [_by_files(vendor, expected)]
    return judge_devices(vendor, seen, expected, tool, troubles, holders(vendor))


def holders(vendor: str, root: str = "/") -> list[str]:
    """Describe the processes that compute on the devices, of any user. Intel's driver does not list them for users."""
    pids: list[str] = []
    if vendor == "amd":
        pids = names_in(os.path.join(root, "sys/class/kfd/kfd/proc"))
    elif vendor == "nvidia" and _tool("nvidia-smi"):
        try:
            said = output_of("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader", timeout_s=_TOOL_S)
        except MissingError:
            said = ""
        pids = [line.strip() for line in said.splitlines()]
    found = []
    for pid in sorted({int(pid) for pid in pids if pid.isdigit()}):
        folder = os.path.join(root, "proc", str(pid))
        try:
            found.append("%s (process %d, user %d)" % (text_of(folder + "/comm"), pid, os.stat(folder).st_uid))
        except OSError:  # it has ended, or is in another container
            continue
    return found


def look(vendor: str) -> tuple[list[DeviceReading], str, list[str]]:
    """Return the devices, the tool that reported them, and its complaints. The tool is empty if there is no tool."""
    tool = next((name for name in _TOOLS[vendor] if _tool(name)), "")
    seen: list[DeviceReading] = []
    troubles: list[str] = []
    try:
        if tool == "nvidia-smi":
            seen = nvidia.health(_TOOL_S)
        elif tool == "rocm-smi":
            seen = amd.rocm_smi_health(_TOOL_S)
        elif tool == "amd-smi":
            seen = amd.amd_smi_health(_TOOL_S)
        elif tool == "xpu-smi":
            seen, troubles = intel.health(_TOOL_S)
    except MissingError as error:
        troubles = [str(error)]
    return seen, tool, troubles


def judge_devices(
    vendor: str,
    seen: Sequence[DeviceReading],
    expected: Expected,
    tool: str,
    troubles: Sequence[str] = (),
    others: Sequence[str] = (),
) -> list[Finding]:
    """Judge the readings. `others`: processes that compute on the devices before the ranks have started."""
    found = [_count(vendor, seen, expected, tool)]
    if seen:
        # AMD's list has the processes on devices of other jobs too: it only adds names to memory that is in use.
        found += [_memory(seen, expected, others, alone=vendor == "nvidia"), _errors(seen, troubles), _clocks(seen)]
    elif troubles:
        found.append(fail("device-errors", "; ".join(troubles), "use another node, and tell the site's support"))
    return found


def _count(vendor: str, seen: Sequence[DeviceReading], expected: Expected, tool: str) -> Finding:
    wanted = expected.get("cards" if vendor == "intel" else "count")
    names = sorted({device.name for device in seen if device.name})
    drivers = sorted({device.driver for device in seen if device.driver})
    text = "%d by %s%s%s" % (
        len(seen),
        tool,
        ": " + ", ".join(names) if names else "",
        ", driver " + ", ".join(drivers) if drivers else "",
    )
    facts = {"count": len(seen), "driver": drivers[0] if drivers else ""}
    if wanted and len(seen) != wanted:
        remedy = "use another node (`windlass doctor --full` can leave it out), or ask for devices (--gpus-per-node)"
        return fail("devices", "%s, where the plan has %d" % (text, wanted), remedy, **facts)
    return ok("devices", text, **facts)


def _memory(seen: Sequence[DeviceReading], expected: Expected, others: Sequence[str], *, alone: bool) -> Finding:
    wanted = expected.get("memory_bytes") or 0
    small = [
        d for d in seen if wanted and d.memory_total_bytes is not None and d.memory_total_bytes < wanted * LESS_MEMORY
    ]
    if small:
        text = ", ".join("device %d has %s" % (d.place, binary_size(d.memory_total_bytes or 0)) for d in small)
        return fail("device-memory", "%s instead of %s" % (text, binary_size(wanted)), "check the node type")
    busy = [d for d in seen if (d.memory_bytes or 0) > max(BUSY_BYTES, BUSY_SHARE * (d.memory_total_bytes or 0))]
    if busy or (others and alone):
        text = listed([*("device %d: %s" % (d.place, binary_size(d.memory_bytes or 0)) for d in busy), *others])
        remedy = "end them if they are yours, otherwise leave the node out, or ask for whole nodes (--exclusive)"
        if not others:
            remedy = "find the process that uses it (the vendor's smi, `ps`); it may be left from an earlier job"
        return warn("device-memory", "in use before the run: %s" % text, remedy)
    sizes = sorted({binary_size(d.memory_total_bytes) for d in seen if d.memory_total_bytes})
    return ok("device-memory", "%s each, free" % " or ".join(sizes) if sizes else "free")


def _errors(seen: Sequence[DeviceReading], troubles: Sequence[str]) -> Finding:
    bad = ["device %d: %d uncorrected memory errors" % (d.place, d.uncorrected) for d in seen if d.uncorrected]
    bad += ["device %d: rows of memory wait for a reset" % d.place for d in seen if d.needs_reset]
    bad += list(troubles)
    if bad:
        return fail("device-errors", "; ".join(bad), "use another node, and tell the site's support")
    told = any(d.uncorrected is not None for d in seen)
    return ok("device-errors", "none" if told else "unknown (the tool does not count them here)")


def _clocks(seen: Sequence[DeviceReading]) -> Finding:
    bad = ["device %d: %s" % (d.place, ", ".join(d.throttle_reasons)) for d in seen if d.throttle_reasons]
    if bad:
        return warn("device-clocks", "; ".join(bad), "the node is too hot or short of power: use another, tell support")
    if any(d.throttled is not None for d in seen):
        return ok("device-clocks", "no slowdown")
    return not_applicable("device-clocks", "the tool does not report it")


def _by_files(vendor: str, expected: Expected) -> Finding:
    """Check the device files that frameworks open, for nodes without the vendor's tool."""
    count = len(_files(vendor))
    wanted = expected.get("cards") if vendor != "amd" else expected.get("count")
    text = "%d device files (no %s tool in PATH)" % (count, vendor)
    if wanted and count < wanted:
        return fail("devices", "%s, where the plan has %d" % (text, wanted), "use another node, or ask for devices")
    return ok("devices", text, count=count)


def _files(vendor: str) -> list[str]:
    if vendor == "nvidia":
        return [path for path in glob.glob("/dev/nvidia[0-9]*") if os.path.basename(path)[6:].isdigit()]
    wanted = {"amd": "0x1002", "intel": "0x8086"}[vendor]
    nodes = glob.glob("/sys/class/drm/renderD*")
    return [node for node in nodes if text_of(node + "/device/vendor") == wanted]


def _vendor_here() -> str:
    """Return the vendor of the devices here, if the plan has none. An Intel display does not count."""
    return next((vendor for vendor in ("nvidia", "amd") if any(map(_tool, _TOOLS[vendor])) and _files(vendor)), "")


_TOOLS = {"nvidia": ("nvidia-smi",), "amd": ("rocm-smi", "amd-smi"), "intel": ("xpu-smi",)}


def _tool(name: str) -> bool:
    return shutil.which(name) is not None


JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID")
_LOW_SHARE = 0.3
"""A node that an earlier job released has most of its memory free. Our caches in memory use less than this."""
_LOOKS = 4
_LOOK_EVERY_S = 0.25
_FIRST_UID = 1000
"""Lower numbers belong to services of the site."""


def check_hardware(nics: Sequence[str], proc: str = "/proc", net: str = NET) -> Finding:
    """Report CPUs, memory and links of this node as facts. They are equal on all nodes of one type."""
    lines = [line.partition(":") for line in text_of(proc + "/cpuinfo").splitlines()]
    models = [value.strip() for name, _, value in lines if name.strip() in {"model name", "CPU part", "cpu"}]
    cpus = "%d x %s" % (sum(name.strip() == "processor" for name, _, _ in lines), models[0] if models else "?")
    links = Counter(
        "MTU %s, %s Mb/s" % (text_of("%s/%s/mtu" % (net, name)), text_of("%s/%s/speed" % (net, name)) or "?")
        for name in nics or [name for name in names_in(net) if os.path.exists("%s/%s/device" % (net, name))]
    )
    facts = {
        "CPUs": cpus,
        "links": "; ".join("%d x %s" % (count, link) for link, count in sorted(links.items())),
        "memory": _meminfo(proc, "MemTotal:"),
    }
    return ok("hardware", "%s, %s of memory" % (cpus, binary_size(_meminfo(proc, "MemTotal:"))), **facts)


def check_memory(job: str, proc: str = "/proc") -> Finding:
    """Compare the memory that ranks may use with the node's memory and the job's share of its CPUs."""
    total, left = _meminfo(proc, "MemTotal:"), memory_left(proc)
    if not total or not left:
        return not_applicable("memory", "the node does not report it")
    free = _meminfo(proc, "MemAvailable:")
    seen = "%s of %s can be used" % (binary_size(left), binary_size(total))
    if job and free < total * _LOW_SHARE:
        remedy = "end processes and remove files in /dev/shm that an earlier job left, or leave the node out"
        return warn("memory", "%s of %s are free before the run" % (binary_size(free), binary_size(total)), remedy)
    cpus = len(os.sched_getaffinity(0)) / (os.cpu_count() or 1)
    if left < total * cpus * _LOW_SHARE:
        remedy = "ask for memory with the job: --mem=0 (Slurm, all of the node), -l select=…:mem=… (PBS)"
        return warn("memory", "%s, with %.0f %% of the CPUs: the job's own limit" % (seen, cpus * 100), remedy)
    return ok("memory", seen)


def _meminfo(proc: str, name: str) -> int:
    rows = (row.split() for row in text_of(proc + "/meminfo").splitlines())
    return next((int(row[1]) << 10 for row in rows if row[:1] == [name]), 0)


def check_busy(job: str, proc: str = "/proc") -> Finding:
    """Find processes of other users and jobs that keep the CPUs of this job busy."""
    if not job:
        return not_applicable("busy-node", "not inside a job: these processes may be intended")
    running: Counter[str] = Counter()
    for look in range(_LOOKS):
        time.sleep(_LOOK_EVERY_S if look else 0.0)
        running.update(
            name for name in filter(str.isdigit, names_in(proc)) if ") R " in text_of("%s/%s/stat" % (proc, name))
        )
    texts = [_stranger(proc, name, job) for name, count in running.items() if count == _LOOKS]
    others = [text for text in texts if text]
    if others:
        seen = "other processes use the CPUs of this job: %s" % listed(others)
        remedy = "end them if they are yours; otherwise leave the node out, or request whole nodes (--exclusive)"
        return warn("busy-node", seen, remedy)
    return ok("busy-node", "no process of others uses the CPUs")


def _stranger(proc: str, name: str, job: str) -> str:
    """Describe the process if it belongs to another user or job and may run on our CPUs."""
    try:
        uid = os.stat("%s/%s" % (proc, name)).st_uid
        shared = os.sched_getaffinity(int(name)) & os.sched_getaffinity(0)
    except OSError:
        return ""
    who = "user %d" % uid
    if uid == os.getuid():
        entries = text_of("%s/%s/environ" % (proc, name)).split("\0")
        theirs = next((e.partition("=")[2] for e in entries if e.partition("=")[0] in JOB_VARIABLES), job)
        who = "job %s" % theirs if theirs != job else ""
    elif uid < _FIRST_UID:
        who = ""
    return "%s (process %s, %s)" % (text_of("%s/%s/comm" % (proc, name)), name, who) if who and shared else ""
