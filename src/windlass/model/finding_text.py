"""Findings as text and as HTML: the one place that renders them, for every command and page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.model.finding import Finding, count_text, worst_severity

_WIDTH = len("warning")
INDENT = " " * (_WIDTH + 2)
"""Below the text of a finding."""
_CLASSES = {"error": "bad", "warning": "low", "ok": "normal"}


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """One line per finding with its severity and kind, and the advice below it."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.severity:<{_WIDTH}}  {finding.kind}: {finding.text()}")
        if finding.advice:
            lines.append(f"{INDENT}→ {finding.advice}")
    return lines


def findings_html(findings: Iterable[Finding]) -> str:
    """The same as a list of an HTML page."""
    from html import escape  # here: only pages need it, and it is not free

    items = []
    for finding in findings:
        advice = f'<br><span class="soft">try: {escape(finding.advice)}</span>' if finding.advice else ""
        items.append(
            f'<li class="{_CLASSES.get(finding.severity, "unknown")}"><b>{finding.severity}</b> '
            f"<strong>{escape(finding.kind)}</strong>: {escape(finding.text())}{advice}</li>"
        )
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def check_text(title: str, findings: Sequence[Finding], site: str) -> str:
    """The check of an image or an environment: all findings, then whether it should work on the site."""
    where = f" on {site}" if site else ""
    return "\n".join([title, "", *finding_lines(findings), "", f"verdict{where}: {verdict_text(findings)}"])


def verdict_text(findings: Sequence[Finding]) -> str:
    """`should work, 1 note`, or `will not work as it is: 1 error, 2 notes`."""
    counts = count_text(findings)
    if worst_severity(findings) == "error":
        return f"will not work as it is: {counts}"
    return f"should work, {counts}" if counts else "should work"
