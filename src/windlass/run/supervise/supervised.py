"""A run under supervision: what one start of it is, and when its allocation ends."""

from __future__ import annotations

import dataclasses
import time

from windlass.backends.schedulers.walltime import parse_walltime
from windlass.model.record import RunRecord
from windlass.run.failure.root_cause import RESUME_ME
from windlass.run.jit_caches import finish_caches
from windlass.run.run import Run
from windlass.run.supervise.loop import Supervised, supervise_attempts
from windlass.run.supervise.resubmit import BATCH_FILE
from windlass.run.verdict import good_end


def run_supervised(run: Run) -> RunRecord:
    """Start a run as often as it takes and as its request allows. Returns the record of the last start."""
    folder, view, environ = run.folder, run.view, run.environ
    if run.secrets:
        folder.save_plan(run.plan, run.secrets)
    run.announce()
    values = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    live = Supervised(**values, deadline_s=_deadline_s(run))
    record = None
    try:
        record = supervise_attempts(live)
    finally:
        folder.forget_secrets()
        in_haste = record is None or record.outcome == "stopped" or record.exit_code == RESUME_ME
        for ended, facts in live.starts[-1:]:
            finish_caches(ended, folder, facts, environ, view, in_haste=in_haste)
    if record.outcome == "ok" and not run.quiet:
        for line in good_end(live.starts[-1][0], record, folder):
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
