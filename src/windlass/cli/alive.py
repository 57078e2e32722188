"""A run under supervision: what one start of it is, and when its allocation ends."""

from __future__ import annotations

import os
import time

import msgspec

from windlass.agents.heartbeat import WatchedBeside, beats_folder, watched_agents
from windlass.cli.settle import announce, hosts_of, settle
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.plan.inputs import Secrets
from windlass.plan.render.rank_script import JobFacts
from windlass.run.context import Surroundings
from windlass.run.execute import execute, good_end, prepare
from windlass.run.folder import RunFolder
from windlass.run.jit_caches import finish_caches
from windlass.run.output import View
from windlass.schedulers.walltime import parse_walltime
from windlass.settings import read_settings
from windlass.supervise.heartbeat_monitor import RankWatch
from windlass.supervise.loop import Live, keep_alive
from windlass.supervise.resubmit import BATCH_FILE


def kept_alive(
    plan: Plan,
    secrets: Secrets,
    folder: RunFolder,
    around: Surroundings,
    view: View,
    environ: dict[str, str],
    *,
    quiet: bool,
) -> RunRecord:
    """Start a plan under supervision, as often as it takes and as the request allows."""
    if secrets:
        folder.save_plan(plan, secrets)
    if not quiet:
        announce(plan, folder, view)
    last: list[tuple[Plan, JobFacts]] = []
    deadline_s = _deadline_s(plan, folder, around)

    def start(plan: Plan, attempt: int, watch: RankWatch) -> tuple[RunRecord, WatchedBeside]:
        hosts = hosts_of(plan)
        settled = settle(plan, folder, hosts, around, environ, f"{folder.run_id}.{attempt}")
        facts = msgspec.structs.replace(
            settled,
            attempt=attempt,
            deadline_s=deadline_s,
            beats=beats_folder(plan, os.getuid(), folder.run_id),
        )
        last[:] = [(plan, facts)]
        prepare(plan, folder, facts, hosts)
        agents = watched_agents(plan, folder, facts, hosts, environ, plan.request.hang_after_s)
        beside = WatchedBeside(agents, plan, folder, view, hosts, quiet=quiet)
        watch.signs = beside
        return execute(plan, folder, facts, hosts, view, environ, beside, watch, last=False), beside

    live = Live(
        plan=plan,
        folder=folder,
        context=around.context,
        view=view,
        environ=environ,
        state_dir=read_settings(environ).state_dir,
        quiet=quiet,
        start=start,
        deadline_s=deadline_s,
    )
    try:
        record = keep_alive(live)
    finally:
        folder.forget_secrets()
        for ended, facts in last:
            finish_caches(ended, folder, facts, environ, view)
    if record.outcome == "ok" and not quiet:
        for line in good_end(last[0][0], record, folder):
            view.note(line)
    return record


def _deadline_s(plan: Plan, folder: RunFolder, around: Surroundings) -> float | None:
    """When this allocation ends: as the scheduler says, else, in a job that windlass submitted, by its own time limit.
    That is late by the seconds that the job took to get here, which the margin covers."""
    allocation = around.context.allocation
    if allocation is None or allocation.end_time_s is not None:
        return allocation.end_time_s if allocation else None
    if plan.request.time is None or not folder.part(BATCH_FILE).exists():
        return None
    return time.time() + parse_walltime(plan.request.time)
