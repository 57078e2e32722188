"""Ranks of the examination. The plan itself starts them, so they see what the ranks of a run would see."""

from __future__ import annotations

import io
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from windlass.agents.ship import script_text
from windlass.diagnose.doctor.bandwidth import check_slowness
from windlass.diagnose.doctor.comm_log import parse_comm_log
from windlass.diagnose.doctor.health import Level, Patient
from windlass.diagnose.doctor.rank_checks import Reports, check_ranks, rank_hosts
from windlass.errors import WindlassError
from windlass.model.finding import Finding
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.node.sys.messages import MessageReader
from windlass.node.sys.reading import read_text
from windlass.node.sys.tools import text_of
from windlass.plan.inputs import Secrets
from windlass.plan.plan import make_plan
from windlass.run.container_paths import seen_paths
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.folder import RunFolder, make_folder
from windlass.run.jobs import StartedJob
from windlass.run.once import run_once
from windlass.run.output import OutputView
from windlass.run.planning import Run

SCRIPT = "doctor_rank.py"
_SECONDS = {"quick": 60.0, "default": 180.0, "full": 480.0}
"""Seconds after which a hanging rank ends itself."""
_PATIENCE_S = {"quick": 20.0, "default": 20.0, "full": 240.0}
_PER_NODE_S = 0.02
_LOOK_EVERY_S = 1.0


class Stopped(KeyboardInterrupt):
    """A user asked the examination to end while ranks were running. The ranks have ended."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


def examine_ranks(patient: Patient, level: Level) -> list[Finding]:
    """Start one examination rank for each rank of the plan, and judge the reports."""
    folder = make_folder(str(patient.folder.part("ranks")), patient.folder.path, "ranks")
    try:
        plan, secrets = rank_plan(patient, folder, level)
        patience = _Patience(plan, folder, _PATIENCE_S[level] + _PER_NODE_S * plan.nodes)
        record = _run(patient, plan, secrets, folder, patience)
    except WindlassError as error:
        return [Finding("ranks", "error", error.message, error.hint or "")]
    if record.outcome == "stopped":
        raise Stopped(record.exit_code - 128)
    reports = read_reports(plan, folder)
    hosts = rank_hosts(plan, reports)
    findings = _came_up(plan, folder, record, reports, hosts, patience.silent_s)
    if reports:
        way = parse_comm_log(_comm_lines(folder))
        findings += check_ranks(plan, patient.context, reports, way, level, patient.environ, patience.silent_s)
        findings += check_slowness(plan, hosts, reports) if level == "full" else []
    return findings


class _Patience:
    """Ends the ranks when no message has arrived for a while, because one hanging rank keeps all others waiting."""

    def __init__(self, plan: Plan, folder: RunFolder, seconds: float) -> None:
        self._plan, self._folder, self._seconds = plan, folder, seconds
        self._said = 0
        self._progress_at = self._looked_at = time.monotonic()
        self.silent_s = 0.0
        """How long the ranks were silent before they were ended. 0 if they ended on their own."""

    def look(self, _: StartedJob) -> str | None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return None
        self._looked_at = now
        said = sum(map(len, read_reports(self._plan, self._folder).values()))
        if said > self._said:
            self._said, self._progress_at = said, now
        if now - self._progress_at < self._seconds:
            return None
        self.silent_s = now - self._progress_at
        return "no rank reports"


def rank_plan(patient: Patient, folder: RunFolder, level: Level) -> tuple[Plan, Secrets]:
    """Return the patient's plan with the examination instead of the user's command."""
    plan = patient.plan
    spec = {
        "level": level,
        "seconds": _SECONDS[level],
        "nodes": plan.nodes,
        "ranks_per_node": plan.ranks_per_node,
    }
    script = folder.write(SCRIPT, script_text("windlass.node.checks.rank:main", spec))
    context = patient.context
    named = patient.request.command[:1] if patient.request.kind == "command" else ()
    if named and Path(named[0]).name.startswith("python"):
        context = msgspec.structs.replace(context, python=named[0], python_because="of the command")
    request = msgspec.structs.replace(
        patient.request,
        kind="script",
        command=(str(script),),
        placeholders=False,
        name="doctor",
        comm_log="0" if level != "quick" else None,
        run_dir=None,
        cache=(),
        keep_caches=None,
        restarts=None,
        spares=0,
        hang_after_s=None,
        until_done=False,
        watch=False,
        profile=None,
        check=False,
        grace_s=1.0,
        nodes=None if plan.hosts else plan.nodes,
        hosts=plan.hosts,
        ranks_per_node=plan.ranks_per_node,
    )
    if context.seen_paths is not None:  # the script is at another path than the user's
        context = msgspec.structs.replace(context, seen_paths=seen_paths(request, context.site, patient.environ))
    return make_plan(request, context)


def _run(patient: Patient, plan: Plan, secrets: Secrets, folder: RunFolder, patience: _Patience) -> RunRecord:
    folder.save_plan(plan, secrets)
    view = OutputView(frozenset(), io.StringIO(), io.StringIO())
    run = Run(
        plan=plan,
        secrets=secrets,
        folder=folder,
        context=patient.context,
        view=view,
        environ=patient.environ,
        quiet=True,
    )
    return run_once(run, watch=patience)


def read_reports(plan: Plan, folder: RunFolder) -> Reports:
    """Return the complete reports of the ranks, by rank. Incomplete messages are left out."""
    readers: dict[int, MessageReader] = {}
    found: dict[int, dict[str, Any]] = {}
    for rank, text in rank_logs(plan, folder.path).lines():
        message = readers.setdefault(rank, MessageReader()).read_line(text)
        if message is not None:
            found.setdefault(rank, {}).update(message)
    return found


def _comm_lines(folder: RunFolder) -> list[str]:
    lines: list[str] = []
    for file in sorted(folder.part("comm").iterdir()):
        lines += read_text(file, within=folder.path, errors="replace").splitlines()
    return lines


def _came_up(
    plan: Plan, folder: RunFolder, record: RunRecord, reports: Reports, hosts: tuple[str, ...], silent_s: float
) -> list[Finding]:
    """Check that every rank of the plan started and reported.

    Blames the node of the first rank that failed. If the ranks were ended because they hung, blames the nodes of those
    that did not report.
    """
    failure = record.failure
    died = failure is not None and failure.rank is not None and "import_error" not in reports.get(failure.rank, {})
    if len(reports) == plan.world_size and (silent_s or not died):
        return [Finding("ranks", "ok", f"all {plan.world_size} started as planned")]
    seen = f"{len(reports)} of {plan.world_size} answered"
    silent = [rank for rank in range(plan.world_size) if rank not in reports]
    if silent_s:
        seen += f" within {silent_s:.0f} s, none on this node"
    elif failure is not None and failure.rank is not None:
        last = next((line for line in reversed(failure.last_lines) if line.strip()), failure.said)
        seen, silent = f"{seen}; rank {failure.rank} failed first: {last.strip()}", [failure.rank]
    else:
        seen += ": " + (text_of(str(folder.part("launcher.log"))).splitlines() or ["the launcher printed nothing"])[0]
    advice = "see the output with `windlass doctor --run-dir DIR`, then `windlass explain-log DIR/ranks`"
    if len(silent) == plan.world_size or plan.nodes == 1:
        return [Finding("ranks", "error", seen[:600], advice)]
    advice = f"leave the node out, or mount the file system of the environment there; {advice}"
    nodes = dict.fromkeys(hosts[rank // plan.ranks_per_node] for rank in silent)
    return [Finding("ranks", "error", seen[:600], advice, subject=host) for host in nodes]
