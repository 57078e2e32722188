"""The subject of an examination, and its result: findings of many nodes and ranks, with equal ones merged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from windlass.base.notation.hostlist import fold_hostlist
from windlass.model.finding import SEVERITIES, Finding, Severity
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.plan.inputs import PlanningContext
from windlass.run.folder import RunFolder

Level = Literal["quick", "default", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Patient:
    """The subject of an examination: a plan in its context, and the folder for its files."""

    request: Request
    """The user's original request. The command may be empty."""
    plan: Plan
    """The plan for the examined nodes: those of the job, or only this one."""
    job_plan: Plan
    """The plan of the request, as `windlass plan` shows it."""
    context: PlanningContext
    folder: RunFolder
    environ: Mapping[str, str]
    hosts: tuple[str, ...]
    login: bool = False
    """On a login node, or outside of any job: no rank starts, and devices are not expected."""


_ASKED_ONE = frozenset({"home", "port"})
"""Kinds that the first node reports for all nodes. They do not make that node a bad one."""
_Where = TypeVar("_Where", int, str)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All findings of the doctor: the document of `doctor --json`."""

    version: int
    site: str
    nodes: int
    outside: bool = False
    """Not inside a job: the doctor examined only this machine and started no rank."""
    level: Literal["quick", "default", "full"]
    severity: Severity
    """The worst severity of the findings."""
    findings: tuple[Finding, ...]
    """The subject is a folded host list. `facts["nodes"]` is the number of hosts in it."""
    bad_nodes: dict[str, str] = {}
    """Hosts that should not be used, with the reason."""
    seconds: float = 0.0


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Merge equal findings of many hosts, in the order of the kinds. Within a kind the most common comes first.

    Findings that differ only in a number (a process, a free size) are equal. All findings of severity `ok` are equal.
    """
    groups: dict[str, dict[tuple[str, str], list[Finding]]] = {}
    for finding in findings:
        key = (finding.severity, "" if finding.severity == "ok" else _NUMBER.sub("#", finding.evidence))
        groups.setdefault(finding.kind, {}).setdefault(key, []).append(finding)
    return tuple(
        _folded(same)
        for results in groups.values()
        for same in sorted(results.values(), key=lambda same: (-len(same), SEVERITIES.index(same[0].severity)))
    )


def _folded(same: list[Finding]) -> Finding:
    hosts = list(dict.fromkeys(finding.subject for finding in same if finding.subject))
    if not hosts:
        return same[0]
    return msgspec.structs.replace(same[0], subject=fold_hostlist(hosts), facts={"nodes": len(hosts)})


def odd_values(said: Mapping[_Where, Mapping[str, str | None]]) -> dict[_Where, dict[str, str]]:
    """Return by node or rank the values that most others do not have, as text. None is not a value and not odd."""
    odd: dict[_Where, dict[str, str]] = {}
    for name in dict.fromkeys(name for values in said.values() for name in values):
        known = {where: value for where, values in said.items() if (value := values.get(name)) is not None}
        usual = Counter(known.values()).most_common(1)[0][0] if known else ""
        for where, value in known.items():
            if value != usual:
                odd.setdefault(where, {})[name] = f"{name}: {value or 'none'}, on most nodes {usual or 'none'}"
    return odd


def failing_hosts(findings: Iterable[Finding], hosts: tuple[str, ...]) -> Mapping[str, str]:
    """Return the hosts with an error that most other hosts do not have, with the reason.

    Such an error comes from the node, not from the plan.
    """
    failed: dict[str, dict[str, str]] = {}
    for finding in findings:
        if finding.severity == "error" and finding.subject and finding.kind not in _ASKED_ONE:
            failed.setdefault(finding.kind, {}).setdefault(finding.subject, finding.evidence)
    odd: dict[str, str] = {}
    for kind, evidence in failed.items():
        if len(evidence) * 2 < len(hosts) or (len(evidence) == 1 and len(hosts) > 1):
            for host, text in evidence.items():
                odd.setdefault(host, f"{kind}: {text}")
    return odd
