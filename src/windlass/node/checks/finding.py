"""What one check prints: a finding as JSON, in the form that `windlass.model.finding` decodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
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


def read_text(path: str) -> str:
    """A small file of /proc or /sys; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def output_of(argv: Sequence[str], timeout_s: float = 8.0, env: dict[str, str] | None = None) -> str:
    """What a tool says on its standard output; empty where it is missing, fails or does not end in time."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def expanded(path: str) -> str:
    """A path with `${NAME}` filled in from this node's environment."""
    return os.path.expandvars(path)
