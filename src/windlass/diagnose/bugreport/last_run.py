"""What a bug report says of a run: how it stands, its plan, its scripts, and the ends of its logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windlass.base.notation.counts import counted
from windlass.errors import WindlassError
from windlass.model.plan import Plan, plan_to_json
from windlass.plan.show import plan_text
from windlass.run.bundle import plan_for_strangers, tail_text
from windlass.run.failure.verdict import attempt_folders
from windlass.run.folder import PLAN_FILE, RunFolder, read_plan
from windlass.run.supervise.runs import state_of

MAX_LOG_BYTES = 64 << 10
MAX_NODES = 8
"""Nodes whose output is taken: the first ones, and those whose files changed last."""
_TEXTS = ("result.json", "verdict.json", "rank.sh", "launch.sh", "batch.sh", "snapshots.tsv")
_LOGS = ("launcher.log", "agents.log", "agents.out", "job.log")


def state_text(folder: RunFolder, environ: Mapping[str, str]) -> str:
    """How it stands; asks the scheduler, with a deadline."""
    state = state_of(folder, environ)
    starts = counted(len(attempt_folders(folder.path)) + 1, "start")
    return f"{state.path}\n{state.state}: {state.why or '-'}\n{state.shape or '?'} ranks, {starts}, job {state.job_id}"


def plan_of(folder: RunFolder) -> Plan | None:
    """Its plan; None where it is damaged."""
    try:
        return read_plan(folder.path)
    except WindlassError:
        return None


def run_files(folder: RunFolder, plan: Plan | None, *, logs: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Texts by name, and what is left out with the reason."""
    files: dict[str, str] = {}
    left: dict[str, str] = {}
    if plan is None:
        left[PLAN_FILE] = "damaged"
    else:
        shown = plan_for_strangers(plan)
        files[PLAN_FILE] = plan_to_json(shown).decode()
        files["plan.txt"] = plan_text(shown, explain=True)
    for name in _TEXTS:
        _take(folder, name, files, left)
    outputs = _outputs(folder.part("out"))
    if not logs:
        left["logs"] = "--no-logs"
        return files, left
    for name in _LOGS:
        _take(folder, name, files, left)
    for path in outputs[:MAX_NODES]:
        _take(folder, f"out/{path.name}", files, left)
    if len(outputs) > MAX_NODES:
        left["out/"] = f"output of {len(outputs) - MAX_NODES} more nodes"
    return files, left


def _outputs(folder: Path) -> list[Path]:
    """Files with the output of nodes: the first node's, then those that were written last."""
    try:
        names = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
        return names[:1] + sorted(names[1:], key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def _take(folder: RunFolder, name: str, files: dict[str, str], left: dict[str, str]) -> None:
    try:
        files[name] = tail_text(folder.part(name), MAX_LOG_BYTES, within=folder.path)
    except FileNotFoundError:
        pass
    except OSError as error:
        left[name] = error.strerror or "cannot be read"
