"""Adds what supervision knows of an attempt to what its files tell: heartbeats, node diagnostics, the scheduler."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from windlass.model.plan import Plan
from windlass.run.execute import RanksEnd
from windlass.run.failure.flight import missing_text
from windlass.run.failure.rank_logs import RankLogs, rank_logs
from windlass.run.failure.rank_states import RankState, rank_states, states_text, straggler
from windlass.run.failure.root_cause import RESUME_ME, JobDisposition, Observed, end_code
from windlass.run.folder import RunFolder
from windlass.run.sidecars.heartbeat import HeartbeatSidecar
from windlass.run.supervise.diagnostics import NodeReport, diagnose_nodes, lost_hosts
from windlass.run.supervise.disposition import ask_disposition
from windlass.run.supervise.heartbeat_monitor import HeartbeatMonitor
from windlass.run.verdict import observe_end, ranks_saw_time_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """An attempt that is over. `stacks`: what the nodes said while it hung, if it did."""

    number: int
    plan: Plan
    end: RanksEnd
    sidecar: HeartbeatSidecar
    watch: HeartbeatMonitor
    stacks: NodeReport | None
    deadline_s: float | None = None


def gather(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> tuple[Observed, str]:
    """What was seen, and in words where the ranks were if they hung. Runs node diagnostics, which also sweep what the
    ranks left on the nodes; never raises."""
    plan = ended.plan
    told = observe_end(plan, folder, ended.end)
    time_up = told.time_up or _time_up(ended, told, folder)
    after = (
        None if ended.end.stopped or time_up else _diagnose_after(ended, folder, environ)
    )  # at the end each second counts
    where, odd = _rank_states(ended, rank_logs(plan, folder.path))
    seen = msgspec.structs.replace(
        told,
        time_up=time_up,
        job=_disposition(ended, told, time_up, environ),
        hang=ended.watch.hang,
        straggler=odd,
        lost=tuple(dict.fromkeys((*ended.watch.lost, *(lost_hosts(plan, after) if after else ())))),
        oom=told.oom | frozenset(ended.sidecar.oom),
        kernel=_kernel(ended, after),
        step=ended.sidecar.last_step(),
    )
    return seen, where


def _disposition(ended: Ended, told: Observed, time_up: bool, environ: Mapping[str, str]) -> JobDisposition:
    """Only where somebody told the ranks or windlass to leave: nothing else is the scheduler's doing."""
    if ended.end.stopped:
        asked = ended.end.stopped_by == signal.SIGTERM
    else:
        asked = end_code(told) == RESUME_ME and not time_up
    return ask_disposition(ended.plan, environ, ended.deadline_s) if asked else ""


def _time_up(ended: Ended, told: Observed, folder: RunFolder) -> bool:
    """The ranks were asked to leave because the time is up, or saw it themselves before they were asked."""
    if ended.watch.time_up or ended.end.stopped or end_code(told) != RESUME_ME:
        return ended.watch.time_up
    return ranks_saw_time_up(folder, ended.end.started)


def _diagnose_after(ended: Ended, folder: RunFolder, environ: Mapping[str, str]) -> NodeReport:
    mark = f"WINDLASS_PLACE={folder.run_id}.{ended.number}."
    return diagnose_nodes(ended.plan, folder, environ, "after", mark=mark, seconds=time.time() - ended.end.started)


def _rank_states(ended: Ended, logs: RankLogs) -> tuple[str, RankState | None]:
    """Which ranks were where, by stacks and flight records, and who holds the others up."""
    ranks = rank_states(logs, ended.stacks.messages) if ended.stacks is not None else ()
    missing = missing_text(logs.folder / "flight", logs.world_size)
    return "; ".join(part for part in (states_text(ranks), missing) if part), straggler(ranks)


def _kernel(ended: Ended, after: NodeReport | None) -> dict[str, tuple[str, ...]]:
    """Kernel messages by host."""
    found: dict[str, tuple[str, ...]] = {}
    for line in after.messages if after else ():
        if "kernel" in line:
            host = str(line.get("host", ",".join(ended.end.hosts)))
            found[host] = (*found.get(host, ()), line["kernel"])
    return found
