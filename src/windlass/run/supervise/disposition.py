"""Job disposition: whether the scheduler lets the job that we run in go on, takes it back, or was told to end it.

Asked when the ranks or windlass itself were told to stop, because the signal is the same each time: a person who
cancels a job does not want it back, one that was preempted is to go on elsewhere, and one that the scheduler has put
back into its queue itself must not be submitted a second time.
"""

from __future__ import annotations

from collections.abc import Mapping

from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobState, JobStatus
from windlass.base.procs.command import run_command
from windlass.errors import WindlassError
from windlass.model.plan import Plan
from windlass.run.failure.root_cause import JobDisposition
from windlass.run.scheduler_commands import scheduler_environ
from windlass.run.verdict import is_late

_ASK_S = 10.0


def ask_disposition(plan: Plan, environ: Mapping[str, str], deadline_s: float | None) -> JobDisposition:
    """Ask once, with a deadline: whoever is being ended has only seconds left. Never raises."""
    if plan.job_id is None or plan.scheduler == "none":
        return ""
    scheduler = get_scheduler(plan.scheduler)
    try:
        argv = scheduler.outside_argv(scheduler.status_argv(plan.job_id), environ)
        done = run_command(argv, timeout_s=_ASK_S, env=scheduler_environ(scheduler, environ), check=False)
    except WindlassError:
        return ""
    status = scheduler.parse_status(done.stdout, done.code, plan.job_id)
    return disposition_of(status, restarts=scheduler.restarts(environ), late=is_late(deadline_s))


def disposition_of(status: JobStatus, *, restarts: int, late: bool) -> JobDisposition:
    """`restarts`: how often the scheduler had started this job again when this start of it began. PBS says of a job
    that it ends for its walltime what it says of any other that runs."""
    if status.state in {JobState.QUEUED, JobState.HELD} or status.restarts > restarts:
        return "requeued"
    if status.preempted:
        return "preempted"
    ends = {JobState.RUNNING, JobState.ENDING, JobState.CANCELLED}
    if status.state is JobState.TIMEOUT or (status.state in ends and late):
        return "over"
    if status.state in {JobState.ENDING, JobState.CANCELLED}:
        return "cancelled"
    return "" if status.state is JobState.UNKNOWN else "runs"
