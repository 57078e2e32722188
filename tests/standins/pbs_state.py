"""The memory of the PBS stand-in: nodes, jobs and their attributes as files in one folder, and the answers of qstat.

The folder is named by STANDIN_PBS. Values are kept as OpenPBS 23.06 shows them in `qstat -f -F json`; the captured
output of the real one is what the tests compare with.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SERVER = "head"
FULL = "head.cluster.test"
NODES = ("node1.cluster.test", "node2.cluster.test", "node3.cluster.test")
NCPUS, NGPUS = 4, 2
QUEUES = {"workq": {}, "debug": {"nodect": 2, "walltime": 1800}}
RESOURCES = ("ncpus", "ngpus", "mpiprocs", "ompthreads", "host", "mem")
UNKNOWN_JOB, FINISHED, UNKNOWN_QUEUE = 153, 35, 170


def folder() -> Path:
    return Path(os.environ["STANDIN_PBS"])


def nodes() -> tuple[str, ...]:
    """Full names; STANDIN_NODES may name others, separated by spaces."""
    return tuple(os.environ.get("STANDIN_NODES", " ".join(NODES)).split())


@contextlib.contextmanager
def locked() -> Iterator[None]:
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_job(number: str) -> dict[str, Any] | None:
    """`7`, `7.head` or `7.head.cluster.test`."""
    try:
        text = (folder() / "jobs" / f"{number.split('.', 1)[0]}.json").read_text(errors="surrogateescape")
    except OSError:
        return None
    job: dict[str, Any] = json.loads(text)
    return job


def write_job(job: dict[str, Any]) -> None:
    path = folder() / "jobs" / f"{job['id'].split('.', 1)[0]}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(job), errors="surrogateescape")
    new.replace(path)


def change_job(number: str, **attributes: Any) -> dict[str, Any]:
    with locked():
        job = read_job(number)
        assert job is not None
        job["attributes"].update(attributes)
        job["attributes"]["mtime"] = stamp()
        write_job(job)
        return job


def all_jobs() -> list[dict[str, Any]]:
    paths = sorted((folder() / "jobs").glob("*.json"), key=lambda path: int(path.stem))
    return [job for job in (read_job(path.stem) for path in paths) if job]


def next_id() -> str:
    path = folder() / "next"
    number = int(path.read_text()) if path.exists() else 0
    path.write_text(str(number + 1))
    return f"{number}.{SERVER}"


def stamp() -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y")


def seconds(text: str) -> int | None:
    """`8`, `0:1:0`, `01:00:00`; None for anything else."""
    if not re.match(r"\d+(:\d+){0,2}\Z", text):
        return None
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


def clock(total: int) -> str:
    return f"{total // 3600:02d}:{total // 60 % 60:02d}:{total % 60:02d}"


def parse_select(text: str) -> list[dict[str, str]]:
    """Chunks, one per element. An unknown resource is a KeyError with its name."""
    chunks: list[dict[str, str]] = []
    for part in text.split("+"):
        words = part.split(":")
        count = int(words.pop(0)) if words[0].isdecimal() else 1
        chunk = {"ncpus": "1"}
        for word in words:
            name, _, value = word.partition("=")
            if name not in RESOURCES:
                raise KeyError(name)
            chunk[name] = value
        chunks.extend([chunk] * count)
    return chunks


def place(chunks: list[dict[str, str]], arrangement: str, busy: dict[str, int]) -> list[str] | None:
    """A host for every chunk, or None where they do not fit now."""
    free = {host: NCPUS - busy.get(host, 0) for host in nodes()}
    chosen: list[str] = []
    for chunk in chunks:
        need, wanted = int(chunk["ncpus"]), chunk.get("host")
        for host in nodes():
            taken = "scatter" in arrangement and host in chosen
            named = wanted is None or host.split(".", 1)[0] == wanted or host == wanted
            if free[host] >= need and named and not taken:
                chosen.append(host)
                free[host] -= need
                break
        else:
            return None
    return chosen


def answer(jobs: list[dict[str, Any]]) -> str:
    """As `qstat -F json` prints it: tabs, and no "Jobs" where there is none."""
    whole: dict[str, Any] = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": SERVER}
    if jobs:
        whole["Jobs"] = {job["id"]: job["attributes"] for job in jobs}
    return json.dumps(whole, indent="\t", separators=(",", ":\t"), ensure_ascii=False)
