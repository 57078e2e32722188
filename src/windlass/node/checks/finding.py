"""The output of one check: a finding as JSON, in the form that `windlass.model.finding` decodes."""

from __future__ import annotations

from typing import Any

Finding = dict[str, Any]
_MAX_CHARS = 600


def _finding(kind: str, severity: str, evidence: str, advice: str, facts: dict[str, Any]) -> Finding:
    found: Finding = {"kind": kind, "severity": severity, "evidence": evidence[:_MAX_CHARS]}
    if advice:
        found["advice"] = advice[:_MAX_CHARS]
    if facts:
        found["facts"] = facts
    return found


def ok(kind: str, evidence: str, **facts: Any) -> Finding:
    return _finding(kind, "ok", evidence, "", facts)


def warn(kind: str, evidence: str, advice: str, **facts: Any) -> Finding:
    return _finding(kind, "warning", evidence, advice, facts)


def fail(kind: str, evidence: str, advice: str, **facts: Any) -> Finding:
    return _finding(kind, "error", evidence, advice, facts)


def not_applicable(kind: str, evidence: str) -> Finding:
    return _finding(kind, "skipped", evidence, "", {})
