"""Findings as text: the one place that renders them for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.model.finding import Finding

_WIDTH = len("warning")


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """One line per finding with its severity and kind, and the advice below it."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.severity:<{_WIDTH}}  {finding.kind}: {finding.text()}")
        if finding.advice:
            lines.append(f"{'':<{_WIDTH}}  → {finding.advice}")
    return lines
