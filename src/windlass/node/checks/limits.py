"""Limits of a process: open files, locked memory, processes, addresses. The launcher may hand on the shell's."""

from __future__ import annotations

import resource

from windlass.node.checks.finding import Finding, fail, ok, warn
from windlass.node.sys.text import binary_size

MIN_FILES = 1024
GOOD_FILES = 4096
MIN_LOCKED = 64 << 20
MIN_ADDRESSES = 64 << 30
"""Drivers of devices reserve address space for all memory of the node and its devices; importing torch takes 10 GiB."""
MIN_PROCESSES = 512
GOOD_PROCESSES = 4096

Limits = dict[str, int]


def read_limits() -> Limits:
    """Soft limits of this process; -1 is none."""
    names = {
        "files": resource.RLIMIT_NOFILE,
        "locked": resource.RLIMIT_MEMLOCK,
        "processes": resource.RLIMIT_NPROC,
        "addresses": resource.RLIMIT_AS,
    }
    found = {}
    for name, number in names.items():
        soft, _ = resource.getrlimit(number)
        found[name] = -1 if soft == resource.RLIM_INFINITY else soft
    return found


def judge_limits(limits: Limits, rdma: bool) -> Finding:
    """`rdma`: there are devices whose memory has to be locked."""
    bad: list[tuple[str, str]] = []
    poor: list[tuple[str, str]] = []
    files, locked, processes = limits["files"], limits["locked"], limits["processes"]
    if 0 <= files < GOOD_FILES:
        text = ("%d open files (ulimit -n)" % files, "ulimit -n %d" % GOOD_FILES)
        (bad if files < MIN_FILES else poor).append(text)
    if 0 <= processes < GOOD_PROCESSES:
        text = ("%d processes (ulimit -u)" % processes, "ulimit -u %d" % GOOD_PROCESSES)
        (bad if processes < MIN_PROCESSES else poor).append(text)
    if rdma and 0 <= locked < MIN_LOCKED:
        bad.append(("%s of locked memory (ulimit -l)" % binary_size(locked), "ulimit -l unlimited"))
    addresses = limits.get("addresses", -1)
    if 0 <= addresses < MIN_ADDRESSES:
        bad.append(("%s of address space (ulimit -v)" % binary_size(addresses), "ulimit -v unlimited"))
    wrong = bad + poor
    if not wrong:
        return ok("ulimits", "files %s, locked memory %s, processes %s" % _texts(limits), **limits)
    seen = ", ".join(seen for seen, _ in wrong)
    remedy = "raise it before the job starts (%s in the shell that submits; Slurm hands limits on)" % "; ".join(
        remedy for _, remedy in wrong
    )
    return (fail if bad else warn)("ulimits", "too low: %s" % seen, remedy, **limits)


def _texts(limits: Limits) -> tuple[str, str, str]:
    locked = limits["locked"]
    return _text(limits["files"]), "unlimited" if locked < 0 else binary_size(locked), _text(limits["processes"])


def _text(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)
