"""Processes of this user that an earlier job left on the node: they hold devices, ports and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from windlass.node.checks.finding import Finding, not_applicable, ok, warn
from windlass.node.sys.text import listed

JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID")
_RANK = ("RANK", "WORLD_SIZE", "MASTER_ADDR")

Process = tuple[int, str, dict[str, str]]
"""Number, name, environment."""


def processes_of(uid: int, proc: str = "/proc") -> list[Process]:
    """Processes of this user that let us read their environment."""
    found = []
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            if os.stat("%s/%s" % (proc, name)).st_uid != uid:
                continue
            with open("%s/%s/environ" % (proc, name), "rb") as file:
                pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
                environ = {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
            with open("%s/%s/comm" % (proc, name), encoding="utf-8", errors="replace") as file:
                comm = file.read().strip()
        except OSError:
            continue
        found.append((int(name), comm, environ))
    return found


def check_leftovers(processes: Sequence[Process], job: str) -> Finding:
    """Ranks of another job, or of none, where `job` has the node now."""
    if not job:
        return not_applicable("leftover-processes", "not inside a job: what runs here may be wanted")
    left: dict[int, str] = {}
    for pid, comm, environ in processes:
        theirs = next((environ[name] for name in JOB_VARIABLES if environ.get(name)), "")
        if all(name in environ for name in _RANK) and theirs != job:
            left[pid] = "%s (process %d%s)" % (comm, pid, ", job %s" % theirs if theirs else "")
    if left:
        remedy = "end them: kill %s" % " ".join(map(str, left))
        return warn("leftover-processes", "ranks of an earlier run: %s" % listed(list(left.values())), remedy[:300])
    return ok("leftover-processes", "none of an earlier run")
