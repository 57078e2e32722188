"""Parse the schedulers' lists of partitions and queues with their limits. Pure.

A limit that the output does not contain stays absent. Queues that accept no jobs now, or only an administrator's jobs,
are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.backends.schedulers.walltime import day_clock_text, parse_walltime
from windlass.errors import UsageError
from windlass.model.site import QueueSpec

_FSD = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}


def parse_slurm_partitions(output: str) -> tuple[QueueSpec, ...]:
    """Parse `scontrol --oneliner show partition`."""
    return tuple(_slurm_partitions(output))


def _slurm_partitions(output: str) -> Iterator[QueueSpec]:
    for line in output.splitlines():
        said = dict(word.partition("=")[::2] for word in line.split())
        name = said.get("PartitionName")
        if not name or said.get("State") != "UP" or said.get("RootOnly") == "YES":
            continue
        sizes = [size for size in (_count(said.get("MaxNodes")), _count(said.get("TotalNodes"))) if size]
        least = _count(said.get("MinNodes"))
        accounts = said.get("AllowAccounts", "ALL")
        allowed = [said.get(key, "ALL") for key in ("AllowGroups", "AllowAccounts")]
        yield QueueSpec(
            name=name,
            nodes_min=least if least and least > 1 else None,
            nodes_max=min(sizes, default=None),
            time_max=_clock(said.get("MaxTime")),
            default=said.get("Default") == "YES",
            by_name=any(who != "ALL" for who in allowed),
            accounts=() if accounts == "ALL" else tuple(accounts.split(",")),
        )


def parse_pbs_queues(output: str) -> tuple[QueueSpec, ...]:
    """Parse `qstat -Qf -F json`, followed by `qstat -Bf -F json`, which names the default queue."""
    found = [table for table in _json_tables(output) if isinstance(table, dict)]
    queues = _table(next((table for table in found if "Queue" in table), {}), "Queue")
    servers = _table(next((table for table in found if "Server" in table), {}), "Server")
    default = next((s["default_queue"] for s in servers.values() if isinstance(s, dict) and "default_queue" in s), None)
    return tuple(_pbs_queue(name, queues, default) for name, said in queues.items() if _pbs_takes_jobs(said))


def _pbs_takes_jobs(said: object) -> bool:
    """Whether users may submit to it: it is enabled, and it accepts jobs from users and not only from other queues."""
    return isinstance(said, dict) and said.get("enabled") == "True" and said.get("from_route_only") != "True"


def _pbs_queue(name: str, queues: Mapping[str, Any], default: object) -> QueueSpec:
    """A queue with its limits. A routing queue accepts the jobs that one of its destinations accepts."""
    said = queues[name]
    acl = ("acl_user_enable", "acl_group_enable", "acl_host_enable")
    named = str(said.get("route_destinations") or "").split(",") if said.get("queue_type") == "Route" else [name]
    rows = [_table(queues, place.partition("@")[0].strip()) for place in named]
    least = [_count(_table(row, "resources_min").get("nodect")) or 1 for row in rows]
    most = [_count(_table(row, "resources_max").get("nodect")) for row in rows]
    times = [_clock(_table(row, "resources_max").get("walltime")) for row in rows]
    return QueueSpec(
        name=name,
        kind="queue",
        nodes_min=min(least) if min(least) > 1 else None,
        nodes_max=None if None in most else max(count for count in most if count is not None),
        time_max=None if None in times else max((text for text in times if text), key=parse_walltime),
        default=name == default,
        by_name=any(said.get(key) == "True" for key in acl),
    )


def parse_flux_queues(output: str) -> tuple[QueueSpec, ...]:
    """Parse `flux queue list` with the columns queue (`*` at the default), time limit, minimum and maximum nodes.

    An instance without named queues has one queue without a name, which users cannot request."""
    found = []
    for line in output.splitlines():
        name, *limits = line.strip().split("|")
        if len(limits) != 3 or not name.rstrip("*"):
            continue
        least = _count(limits[1])
        found.append(
            QueueSpec(
                name=name.rstrip("*"),
                kind="queue",
                nodes_min=least if least and least > 1 else None,
                nodes_max=_count(limits[2]),
                time_max=_flux_clock(limits[0]),
                default=name.endswith("*"),
            )
        )
    return tuple(found)


def _table(said: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = said.get(key)
    return value if isinstance(value, dict) else {}


def _json_tables(output: str) -> Iterator[object]:
    """Every JSON value of the text, in order. Stops at text that is not JSON."""
    decoder, at = json.JSONDecoder(), output.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(output, at)
        except (ValueError, RecursionError):
            return
        yield value
        at = output.find("{", end)


def _count(said: object) -> int | None:
    """A number of nodes. None for `UNLIMITED`, `inf` and text that is not a number."""
    text = str(said)
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _clock(said: object) -> str | None:
    try:
        return day_clock_text(parse_walltime(str(said))) if said is not None else None
    except UsageError:
        return None


def _flux_clock(said: str) -> str | None:
    match = _FSD.fullmatch(said.strip())
    return day_clock_text(int(float(match.group(1)) * _UNIT_S[match.group(2)])) if match else None
