"""Findings of many nodes and ranks, folded: what all have in common is one line, and the odd ones stand out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from windlass.base.notation.counts import counted
from windlass.base.notation.hostlist import fold_hostlist

Status = Literal["ok", "warn", "fail", "not applicable"]
WORST: tuple[Status, ...] = ("fail", "warn", "ok", "not applicable")
_ASKED_ONE = frozenset({"home", "port"})
"""What the first node answers for all: not its own fault."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One result of a check on one host; without a host it is about the plan or all of them."""

    name: str
    status: Status
    seen: str
    remedy: str = ""
    host: str = ""
    facts: dict[str, Any] = {}


class Folded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same result on many hosts: `seen` is what the first of them says."""

    name: str
    status: Status
    seen: str
    remedy: str = ""
    hosts: str = ""
    """Folded host list; empty: not about single hosts."""
    count: int = 0


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a doctor found: the document of `--json`."""

    version: int
    site: str
    nodes: int
    outside: bool = False
    """Not inside a job: only this machine was looked at, and no rank started."""
    level: Literal["quick", "default", "full"]
    status: Status
    """The worst of the checks."""
    checks: tuple[Folded, ...]
    bad_nodes: dict[str, str] = {}
    """Hosts that should not be used, with the reason."""
    seconds: float = 0.0


def worst(statuses: Iterable[Status]) -> Status:
    """The worst of these; `ok` where there is none."""
    found = set(statuses)
    return next((status for status in WORST if status in found and status != "not applicable"), "ok")


def fold(findings: Iterable[Finding]) -> tuple[Folded, ...]:
    """Equal results together, in the order of the checks; within a check the most common one first. Results that differ
    in a number only (a process, a free size) are equal; what is well is equal however it is said."""
    groups: dict[str, dict[tuple[str, str], list[Finding]]] = {}
    for finding in findings:
        key = (finding.status, "" if finding.status == "ok" else _NUMBER.sub("#", finding.seen))
        groups.setdefault(finding.name, {}).setdefault(key, []).append(finding)
    return tuple(
        _folded(same)
        for results in groups.values()
        for same in sorted(results.values(), key=lambda same: (-len(same), WORST.index(same[0].status)))
    )


def _folded(same: list[Finding]) -> Folded:
    first = same[0]
    hosts = list(dict.fromkeys(finding.host for finding in same if finding.host))
    return Folded(
        name=first.name,
        status=first.status,
        seen=first.seen,
        remedy=first.remedy,
        hosts=fold_hostlist(hosts) if hosts else "",
        count=len(hosts),
    )


def failing_hosts(findings: Iterable[Finding], hosts: tuple[str, ...]) -> Mapping[str, str]:
    """Hosts on which a check fails that does not fail on most of the others: the node is to blame, not the plan. With
    the reason."""
    failed: dict[str, dict[str, str]] = {}
    for finding in findings:
        if finding.status == "fail" and finding.host and finding.name not in _ASKED_ONE:
            failed.setdefault(finding.name, {}).setdefault(finding.host, finding.seen)
    odd: dict[str, str] = {}
    for name, seen in failed.items():
        if len(seen) * 2 < len(hosts) or (len(seen) == 1 and len(hosts) > 1):
            for host, text in seen.items():
                odd.setdefault(host, f"{name}: {text}")
    return odd


def health_lines(health: Health, *, everything: bool = False) -> list[str]:
    """For people: what is wrong first, then what is well, one line per result."""
    lines = []
    for status in ("fail", "warn", "ok", "not applicable"):
        for check in health.checks:
            if check.status != status or (status == "not applicable" and not everything):
                continue
            where = f"{check.hosts}: " if check.hosts and health.nodes > 1 else ""
            lines.append(f"{_MARKS[check.status]} {check.name}: {where}{check.seen}")
            if check.remedy and check.status in {"fail", "warn"}:
                lines.append(f"       → {check.remedy}")
    skipped = len({check.name for check in health.checks if check.status == "not applicable"})
    lines += [f"{host} should not be used: {reason}" for host, reason in health.bad_nodes.items()]
    lines.append(_verdict(health, 0 if everything else skipped))
    if health.outside:
        lines.append(f"outside of a job on {health.site}: get an allocation to check its nodes, ranks and network")
    return lines


_MARKS: dict[Status, str] = {"ok": "ok    ", "warn": "warn  ", "fail": "FAIL  ", "not applicable": "-     "}


def _verdict(health: Health, skipped: int) -> str:
    counts = {status: len({c.name for c in health.checks if c.status == status}) for status in WORST}
    left = f"; {counted(skipped, 'check')} not applicable here" if skipped else ""
    where = counted(health.nodes, "node")
    if health.status == "fail":
        return f"{counted(counts['fail'], 'check')} failed on {where} in {health.seconds:.1f} s{left}"
    if health.status == "warn":
        return f"{where}: nothing failed, {counted(counts['warn'], 'warning')}, {health.seconds:.1f} s{left}"
    return f"{where}: all is well ({counted(counts['ok'], 'check')}, {health.seconds:.1f} s){left}"
