"""The memory of the Flux stand-in: nodes and jobs as files in one folder, named by STANDIN_FLUX.

Job records are kept as `flux jobs --json` of flux-core 0.88 shows them; the captured output of the real one is what the
tests compare with. A job belongs to an instance: the outer one, or the one that a batch job is.
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

_F58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_FSD = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?\Z")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
QUEUES = ("batch", "debug")


def folder() -> Path:
    return Path(os.environ["STANDIN_FLUX"])


def instance() -> str:
    """Empty for the outer instance, else the batch job's id."""
    return os.environ.get("FLUX_ENCLOSING_ID", "")


def nodes() -> list[str]:
    """Hosts of this instance."""
    return os.environ.get("STANDIN_INSTANCE_NODES", os.environ.get("STANDIN_NODES", "node1 node2 node3 node4")).split()


def broker_rank() -> int:
    """Which of the instance's nodes this process is on, by the broker that it talks to."""
    return int(os.environ["FLUX_URI"].rpartition("local-")[2])


def enter_parent() -> None:
    """From here on this process talks to the instance around its own; the outer one is its own parent."""
    for name in ("FLUX_ENCLOSING_ID", "STANDIN_INSTANCE_NODES"):
        os.environ.pop(name, None)
    os.environ["FLUX_URI"] = f"local://{folder()}/local-0"


def ending() -> str:
    """`timeout` or `cancel` where this instance is a batch job that is being ended, else empty."""
    number = from_text(instance())
    path = folder() / "ending" / str(number)
    return path.read_text() if number is not None and path.exists() else ""


def expires_at(number: int | None) -> float | None:
    """When a job's time is over; None where it has no limit."""
    record = read(number)
    if record is None or not record["job"]["duration"] or "t_run" not in record["job"]:
        return None
    return float(record["job"]["t_run"] + record["job"]["duration"])


def cores() -> int:
    return int(os.environ.get("STANDIN_CORES", "2"))


def gpus() -> int:
    return int(os.environ.get("STANDIN_GPUS", "0"))


def f58(number: int, plain: bool | None = None) -> str:
    """`ƒABC`, or `fABC` in a locale without that letter."""
    digits = ""
    rest = number
    while rest:
        rest, digit = divmod(rest, 58)
        digits = _F58[digit] + digits
    if plain is None:
        plain = os.environ.get("LC_ALL") in {"C", "POSIX"}
    return ("f" if plain else "ƒ") + (digits or "1")


def from_text(text: str) -> int | None:
    if text.isdecimal():
        return int(text)
    if text[:1] not in {"ƒ", "f"} or not all(char in _F58 for char in text[1:]) or len(text) < 2:
        return None
    number = 0
    for char in text[1:]:
        number = number * 58 + _F58.index(char)
    return number


@contextlib.contextmanager
def locked() -> Iterator[None]:
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_job(name: str, nnodes: int, ntasks: int, duration: float) -> dict[str, Any]:
    with locked():
        path = folder() / "next"
        number = int(path.read_text()) if path.exists() else 530915000320
        path.write_text(str(number + 4479516672))
        now = time.time()
        job = {
            "t_depend": now,
            "t_priority": now,
            "t_sched": now,
            "duration": duration,
            "name": name,
            "cwd": str(Path.cwd()),
            "ntasks": ntasks,
            "ncores": ntasks,
            "nnodes": nnodes,
            "priority": 16,
            "id": number,
            "t_submit": now,
            "state": "SCHED",
            "username": os.environ.get("USER", "root"),
            "userid": os.getuid(),
            "urgency": 16,
            "status": "SCHED",
            "dependencies": [],
            "jobid": f58(number, plain=False),
            "annotations": {},
            "exception": {"occurred": False},
        }
        write({"job": job, "instance": instance()})
        return job


def write(record: dict[str, Any]) -> None:
    path = folder() / "jobs" / f"{record['job']['id']}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record))
    new.replace(path)


def read(number: int | None) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((folder() / "jobs" / f"{number}.json").read_text())
    except OSError:
        return None
    return record


def change(number: int, **values: Any) -> None:
    with locked():
        record = read(number)
        assert record is not None
        record["job"].update(values)
        write(record)


def running(number: int, hosts: list[str]) -> None:
    change(
        number,
        state="RUN",
        status="RUN",
        t_run=time.time(),
        nodelist=",".join(hosts),
        ranks=f"[0-{len(hosts) - 1}]",
        annotations={"sched": {"resource_summary": f"rank[0-{len(hosts) - 1}]/core[0-1]"}},
    )


def ended(number: int, returncode: int, exception: dict[str, Any] | None = None) -> None:
    """The highest code of the tasks; a fatal exception decides the result."""
    kind = (exception or {}).get("type")
    result = {"cancel": "CANCELED", "timeout": "TIMEOUT"}.get(kind or "", "COMPLETED" if returncode == 0 else "FAILED")
    now = time.time()
    change(
        number,
        state="INACTIVE",
        status=result,
        result=result,
        success=result == "COMPLETED",
        returncode=returncode,
        waitstatus=returncode << 8,
        t_cleanup=now,
        t_inactive=now,
        runtime=0.1,
        exception={"occurred": True, "severity": 0, **exception} if exception else {"occurred": False},
    )


def records_here() -> list[dict[str, Any]]:
    records = [read(int(path.stem)) for path in (folder() / "jobs").glob("*.json")]
    return [record for record in records if record and record["instance"] == instance()]


def jobs_here() -> list[dict[str, Any]]:
    return sorted((record["job"] for record in records_here()), key=lambda job: -job["id"])


def duration(text: str) -> float | None:
    """Flux standard duration; a bare number is minutes. None for anything else, `10:00` too."""
    match = _FSD.match(text)
    if not match:
        return None
    return float(match[1]) * (60 if match[2] is None else _UNITS[match[2]])


def fold(hosts: list[str]) -> str:
    """`node[1-4]` for consecutive numbers, else the names."""
    match = [re.match(r"(.*?)(\d+)\Z", host) for host in hosts]
    if len(hosts) > 1 and all(match):
        numbers = [int(m[2]) for m in match if m]
        prefixes = {m[1] for m in match if m}
        if len(prefixes) == 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return f"{prefixes.pop()}[{numbers[0]}-{numbers[-1]}]"
    return ",".join(hosts)
