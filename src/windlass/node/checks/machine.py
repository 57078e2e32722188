"""Report CPUs, memory and links of a node for comparison with other nodes, and foreign load on it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

from windlass.node.checks.finding import Finding, not_applicable, ok, warn
from windlass.node.checks.meeting import NET
from windlass.node.sampler.readings import listed as names_in
from windlass.node.sys.memory import memory_left
from windlass.node.sys.text import binary_size, listed
from windlass.node.sys.tools import text_of

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
        return not_applicable("memory", "the node does not tell")
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
        return not_applicable("busy-node", "not inside a job: what runs here may be wanted")
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
        remedy = "end them if they are yours; else leave the node out, or ask for whole nodes (--exclusive)"
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
