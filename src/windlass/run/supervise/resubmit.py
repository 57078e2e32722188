"""Hands the rest of a run to the scheduler: the same batch script, without the nodes that are bad now.

Done by windlass in the batch job, outside of any container. A job that was cancelled by a person is not sent again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobSpec
from windlass.errors import UsageError
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.model.site import SchedulerSpec
from windlass.node.sys.reading import read_text
from windlass.run.folder import RunFolder
from windlass.run.submit import submit_script
from windlass.run.supervise.evidence import ask_disposition

BATCH_FILE = "batch.sh"
LOG_FILE = "job.log"


def resubmit(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], bad: frozenset[str], deadline_s: float | None = None
) -> str:
    """Submit the run's batch script again; returns the job's id. Raises `WindlassError` where that is not possible."""
    script = folder.part(BATCH_FILE)
    if plan.scheduler == "none" or not script.exists():
        raise UsageError(
            "this run was not made by `windlass submit`, so there is no batch script to send again",
            hint="submit it with --until-done",
        )
    refuse_cancelled(plan, environ, deadline_s)
    if bad:
        text = with_excluded(read_text(script, errors="surrogateescape"), plan, bad)
        folder.write_signed(BATCH_FILE, text.encode("utf-8", "surrogateescape"), mode=0o700)
    log = folder.part(LOG_FILE)
    if log.exists():  # the next job begins its log anew; this one goes on writing under the other name
        log.rename(folder.part(f"job-{plan.job_id}.log"))
    job_id = submit_script(plan, str(script), environ, from_job=True)
    folder.write("job_id", job_id + "\n")
    return job_id


def refuse_cancelled(plan: Plan, environ: Mapping[str, str], deadline_s: float | None) -> None:
    """A person who cancels a job does not want it back, even if its time was nearly up anyway."""
    disposition = ask_disposition(plan, environ, deadline_s)
    if disposition == "cancelled":
        raise UsageError(f"job {plan.job_id} was cancelled", hint="submit it again yourself if you want it back")
    if disposition == "requeued":
        raise UsageError(
            f"job {plan.job_id} is in the queue again: the scheduler starts it by itself",
            hint="wait for it, or cancel that job first",
        )


def with_excluded(text: str, plan: Plan, bad: frozenset[str]) -> str:
    """The batch script with a directive that leaves these hosts out, where the scheduler has one."""
    scheduler = get_scheduler(plan.scheduler)
    if not scheduler.can_exclude:
        return text
    made = _excluding(plan, tuple(sorted(bad)))
    line = scheduler.directive_line(made)
    lines = [one for one in text.splitlines() if _head(one) != _head(line)]
    return "\n".join([lines[0], line, *lines[1:]]) + "\n"


def _excluding(plan: Plan, hosts: tuple[str, ...]) -> Argument:
    """The scheduler's own words for it: what a job with these hosts to leave out has, and one without has not."""
    scheduler = get_scheduler(plan.scheduler)
    spec = JobSpec(name=plan.name, nodes=plan.nodes, ranks_per_node=plan.ranks_per_node)
    plain = scheduler.directives(spec, SchedulerSpec())
    (made,) = (
        argument
        for argument in scheduler.directives(msgspec.structs.replace(spec, exclude_hosts=hosts), SchedulerSpec())
        if argument not in plain
    )
    return made


def _head(line: str) -> str:
    """What a directive says, without the value and its quotes."""
    return line.partition("=")[0].replace("'", "")
