"""Which nodes of the Flux stand-in are taken: an exclusive step has its nodes for itself, the others count cores.

As in the real one nothing is shared that somebody has exclusively: a step that does not fit waits, for as long as the
others run. `flux exec` asks nobody.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import flux_state as flux
from tasks import LONGEST_RUN_S


def allocate(number: int, candidates: list[str], nodes: int, cores_each: int | None) -> list[str] | None:
    """Hosts for this job once they are free, in the instance's order; None where it was cancelled while it waited.
    `cores_each` None asks for whole nodes."""
    end = time.monotonic() + LONGEST_RUN_S
    while time.monotonic() < end:
        with flux.locked():
            free = _free(number)
            need = flux.cores() if cores_each is None else cores_each
            fits = [host for host in candidates if free[host] >= need]
            if len(fits) >= nodes:
                record = flux.read(number)
                assert record is not None
                taken = {host: free[host] if cores_each is None else need for host in fits[:nodes]}
                flux.write(record | {"taken": taken, "owner": os.getpid()})
                return fits[:nodes]
        if (flux.folder() / "cancelled" / str(number)).exists() or flux.ending():
            return None
        time.sleep(0.05)
    return None


def _free(number: int) -> dict[str, int]:
    free = {host: flux.cores() for host in flux.nodes()}
    for record in flux.records_here():
        job: dict[str, Any] = record["job"]
        if job["id"] == number or job["state"] == "INACTIVE" or not _alive(record.get("owner")):
            continue
        for host, cores in record.get("taken", {}).items():
            free[host] = free.get(host, 0) - cores
    return free


def _alive(pid: int | None) -> bool:
    """The stand-in that runs a job is its broker: when it was killed, the job is gone."""
    return pid is not None and Path(f"/proc/{pid}/stat").exists()
