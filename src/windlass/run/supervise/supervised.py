"""A run under supervision: what one start of it is, and when its allocation ends."""

from __future__ import annotations

import dataclasses
import os
import time

import msgspec

from windlass.agents.heartbeat import HeartbeatSidecar, heartbeat_agents, heartbeats_folder
from windlass.agents.sampler import SamplerSidecar, samples
from windlass.backends.schedulers.walltime import parse_walltime
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.plan.render.job_facts import JobFacts
from windlass.run.execute import execute, good_end, prepare
from windlass.run.failure.root_cause import RESUME_ME
from windlass.run.jit_caches import finish_caches
from windlass.run.rendezvous import plan_hosts, resolve_rendezvous
from windlass.run.run import Run
from windlass.run.supervise.heartbeat_monitor import HeartbeatMonitor
from windlass.run.supervise.loop import Supervised, supervise_attempts
from windlass.run.supervise.resubmit import BATCH_FILE


def run_supervised(run: Run) -> RunRecord:
    """Start a run as often as it takes and as its request allows. Returns the record of the last start."""
    folder, view, environ = run.folder, run.view, run.environ
    if run.secrets:
        folder.save_plan(run.plan, run.secrets)
    run.announce()
    last: list[tuple[Plan, JobFacts]] = []
    deadline_s = _deadline_s(run)

    def start(plan: Plan, attempt: int, watch: HeartbeatMonitor) -> tuple[RunRecord, HeartbeatSidecar]:
        hosts = plan_hosts(plan)
        this = dataclasses.replace(run, plan=plan)
        resolved = resolve_rendezvous(this, hosts, f"{folder.run_id}.{attempt}")
        facts = msgspec.structs.replace(
            resolved,
            attempt=attempt,
            deadline_s=deadline_s,
            beats=heartbeats_folder(plan, os.getuid(), folder.run_id),
        )
        last[:] = [(plan, facts)]
        prepare(this, facts, hosts)
        agents = heartbeat_agents(plan, folder, facts, hosts, environ, plan.request.hang_after_s)
        sidecar = HeartbeatSidecar(agents, plan, folder, view, hosts, quiet=run.quiet)
        watch.signs = sidecar
        beside = (
            sidecar
            if not samples(plan)
            else SamplerSidecar(agents, sidecar, plan, folder, view, hosts, quiet=run.quiet)
        )
        return execute(this, facts, hosts, beside, watch, last=False), sidecar

    values = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    record = None
    try:
        record = supervise_attempts(Supervised(**values, start=start, deadline_s=deadline_s))
    finally:
        folder.forget_secrets()
        in_haste = record is None or record.outcome == "stopped" or record.exit_code == RESUME_ME
        for ended, facts in last:
            finish_caches(ended, folder, facts, environ, view, in_haste=in_haste)
    if record.outcome == "ok" and not run.quiet:
        for line in good_end(last[0][0], record, folder):
            view.note(line)
    return record


def _deadline_s(run: Run) -> float | None:
    """When this allocation ends: as the scheduler says, else, in a job that windlass submitted, by its own time limit.
    That is late by the seconds that the job took to get here, which the margin covers."""
    allocation = run.context.allocation
    if allocation is None or allocation.end_time_s is not None:
        return allocation.end_time_s if allocation else None
    if run.plan.request.time is None or not run.folder.part(BATCH_FILE).exists():
        return None
    return time.time() + parse_walltime(run.plan.request.time)
