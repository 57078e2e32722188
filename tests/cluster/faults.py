"""Writes down what each fault of the test run led to, for the table in the docs: one JSON line per fault.

Only where WINDLASS_FAULTS names a file; `scripts/faults_table.py` turns it into the table.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from windlass.run.failure.root_cause import Cause


def tell_fault(
    fault: str, run: Path, *, repeated: int, losses: str, allowed: int | None = None, seen: str | None = None
) -> None:
    """`run` is the run folder at the end; `repeated` are steps that were done again, `losses` how they compare. `seen`:
    how it showed, where no verdict tells."""
    target = os.environ.get("WINDLASS_FAULTS")
    if not target:
        return
    starts = [*sorted(run.glob("attempt-*"), key=_number), run]
    verdicts = [_verdict(path) for path in starts]
    causes = [_line(verdict["cause"]).replace(str(run.parents[1]), "…") for verdict in verdicts if verdict]
    row = {
        "fault": fault,
        "causes": causes + ([seen] if seen else []),
        "kinds": [verdict["cause"]["kind"] for verdict in verdicts if verdict],
        "actions": [f"{v['decision']['action']}: {v['decision']['why']}" for v in verdicts if v],
        "starts": len(starts),
        "repeated_steps": repeated,
        "allowed_steps": allowed,
        "losses": losses,
        "detect_to_decide_s": [round(_spent(verdict), 2) for verdict in verdicts if verdict],
    }
    with Path(target).open("a") as file:
        file.write(json.dumps(row) + "\n")


def _verdict(path: Path) -> dict[str, Any] | None:
    file = path / "verdict.json"
    return dict(json.loads(file.read_text())) if file.exists() else None


def _spent(verdict: dict[str, Any]) -> float:
    times = verdict["times"]
    return float(times["decided"]) - float(times.get("noticed") or times["ended"])


def _line(cause: dict[str, Any]) -> str:
    return msgspec.convert(cause, Cause).line()


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
