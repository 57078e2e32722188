"""A finding: the one form in which doctor, watch, report, checks and the planner report what they observed.

Code decides on `kind` and `severity`. `evidence` and `advice` are sentences for people and may change at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from windlass.base.notation.counts import counted

Severity = Literal["error", "warning", "note", "ok", "skipped"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note", "ok", "skipped")
"""The worst first. `skipped`: the check does not apply here."""
SERIOUS: frozenset[Severity] = frozenset({"error", "warning"})


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observation and what to do about it."""

    kind: str
    """What was observed, in lower case with hyphens: `loader-workers`. Stable: programs decide on it."""
    severity: Severity
    evidence: str = ""
    """What was seen, for people."""
    advice: str = ""
    """What to do, for people."""
    subject: str = ""
    """The object: a folded host list, `rank 3`, `my.toml:12`. Empty: the run, plan, image or environment as a whole."""
    facts: dict[str, Any] = {}
    """The figures behind the evidence, for programs."""

    def text(self) -> str:
        """Subject and evidence on one line."""
        return f"{self.subject}: {self.evidence}" if self.subject else self.evidence

    def sentence(self) -> str:
        """Subject, evidence and advice on one line, for error messages."""
        return self.text() + (f" ({self.advice})" if self.advice else "")

    def line(self) -> str:
        """The whole finding on one line, for logs."""
        return f"{self.kind}: {self.sentence()}"


def decode_findings(data: object, *, subject: str = "") -> list[Finding]:
    """The findings that a node program printed as JSON. `subject` is the node, for findings that name no subject.

    Raises `msgspec.ValidationError` for anything else.
    """
    found = msgspec.convert(data, list[Finding])
    return [one if one.subject else msgspec.structs.replace(one, subject=subject) for one in found]


def worst_severity(findings: Iterable[Finding]) -> Severity:
    """The worst severity of these. `ok` where there is no finding or all are skipped."""
    found = {finding.severity for finding in findings} - {"skipped"}
    return min(found, key=SEVERITIES.index, default="ok")


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorted by severity, otherwise in the given order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def count_text(findings: Iterable[Finding]) -> str:
    """`1 error, 2 notes`: how many findings need attention. Empty for none."""
    severities = [finding.severity for finding in findings]
    return ", ".join(counted(severities.count(one), one) for one in SEVERITIES[:3] if one in severities)
