"""A finding: the one form in which doctor, watch, report, checks and the planner report what they observed.

Code decides on `kind` and `severity`. `evidence` and `advice` are sentences for people and may change at any time.

This module is also the only renderer of findings, as text and as HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """The observation, in lower case with hyphens: `loader-workers`. Stable: programs decide on it."""
    severity: Severity
    evidence: str = ""
    """The observation, for people."""
    advice: str = ""
    """The recommended action, for people."""
    subject: str = ""
    """The object: a folded host list, `rank 3`, `my.toml:12`. Empty: the whole run, plan, image or environment."""
    facts: dict[str, Any] = {}
    """The figures behind the evidence, for programs."""

    def text(self) -> str:
        """Return subject and evidence on one line."""
        return f"{self.subject}: {self.evidence}" if self.subject else self.evidence

    def sentence(self) -> str:
        """Return subject, evidence and advice on one line, for error messages."""
        return self.text() + (f" ({self.advice})" if self.advice else "")

    def line(self) -> str:
        """Return the whole finding on one line, for logs."""
        return f"{self.kind}: {self.sentence()}"


def decode_findings(data: object, *, subject: str = "") -> list[Finding]:
    """Decode the findings that a node program printed as JSON.

    `subject` is the node, for findings that name no subject. Raises `msgspec.ValidationError` for other data.
    """
    found = msgspec.convert(data, list[Finding])
    return [one if one.subject else msgspec.structs.replace(one, subject=subject) for one in found]


def worst_severity(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity. `ok` if there is no finding or all are skipped."""
    found = {finding.severity for finding in findings} - {"skipped"}
    return min(found, key=SEVERITIES.index, default="ok")


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by severity. Findings of the same severity keep their order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def count_text(findings: Iterable[Finding]) -> str:
    """Return how many findings need attention: `1 error, 2 notes`. Empty if no finding does."""
    severities = [finding.severity for finding in findings]
    return ", ".join(counted(severities.count(one), one) for one in SEVERITIES[:3] if one in severities)


_WIDTH = len("warning")
INDENT = " " * (_WIDTH + 2)
"""Indentation of lines below the text of a finding."""
_CLASSES = {"error": "bad", "warning": "low", "ok": "normal"}


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return one line per finding with its severity and kind, and the advice below it."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.severity:<{_WIDTH}}  {finding.kind}: {finding.text()}")
        if finding.advice:
            lines.append(f"{INDENT}→ {finding.advice}")
    return lines


def findings_html(findings: Iterable[Finding]) -> str:
    """Return the findings as a list of an HTML page."""
    from html import escape  # imported here: only pages need it, and the import takes time

    items = []
    for finding in findings:
        advice = f'<br><span class="soft">try: {escape(finding.advice)}</span>' if finding.advice else ""
        items.append(
            f'<li class="{_CLASSES.get(finding.severity, "unknown")}"><b>{finding.severity}</b> '
            f"<strong>{escape(finding.kind)}</strong>: {escape(finding.text())}{advice}</li>"
        )
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def check_text(title: str, findings: Sequence[Finding], site: str) -> str:
    """Return the check of an image or an environment: all findings, then whether it should work on the site."""
    where = f" on {site}" if site else ""
    return "\n".join([title, "", *finding_lines(findings), "", f"verdict{where}: {verdict_text(findings)}"])


def verdict_text(findings: Sequence[Finding]) -> str:
    """Return `should work, 1 note`, or for an error the failure verdict with its counts."""
    counts = count_text(findings)
    if worst_severity(findings) == "error":
        return f"will not work as it is: {counts}"
    return f"should work, {counts}" if counts else "should work"


class PlanRemark(msgspec.Struct, frozen=True, kw_only=True):
    """A remark of plan versions 1 and 2."""

    level: Literal["note", "warning"]
    text: str
    hint: str = ""

    def finding(self) -> Finding:
        kind = "tcp-fallback" if " would talk over TCP " in self.text else "remark"
        return Finding(kind, self.level, self.text, self.hint)
