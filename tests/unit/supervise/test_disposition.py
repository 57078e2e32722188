"""What a scheduler has in mind with the job that we run in, by what it says of it."""

from __future__ import annotations

import pytest

from windlass.backends.schedulers import get_scheduler
from windlass.run.supervise.evidence import disposition_of

# Lines as Slurm 22.05 writes them inside the job, while it is taken back in each of the ways.
_LINES = {
    "runs": "JobId=1 JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 PreemptTime=None",
    "cancelled": "JobId=1 JobState=COMPLETING Reason=None Dependency=(null) Requeue=1 Restarts=0 PreemptTime=None",
    "preempted": "JobId=1 JobState=COMPLETING Reason=None Requeue=1 Restarts=0 PreemptTime=2026-11-15T06:25:31",
    "warned": "JobId=3 JobState=RUNNING Reason=None Requeue=1 Restarts=0 PreemptTime=2026-11-15T06:26:05",
    "requeued": "JobId=5 JobState=COMPLETING Reason=None Dependency=(null) Requeue=1 Restarts=1",
    "waiting": "JobId=5 JobState=PENDING Reason=BeginTime Requeue=1 Restarts=1 PreemptTime=None",
    "": "slurm_load_jobs error: Unable to contact slurm controller",
}


@pytest.mark.parametrize("name", _LINES)
def test_each_way_to_end_a_job_is_told_from_the_others(name: str) -> None:
    wanted = {"warned": "preempted", "waiting": "requeued"}.get(name, name)
    status = get_scheduler("slurm").parse_status(_LINES[name], 0, "1")
    assert disposition_of(status, restarts=0, late=False) == wanted


def test_a_job_that_ends_at_its_limit_was_not_cancelled() -> None:
    status = get_scheduler("slurm").parse_status(_LINES["cancelled"], 0, "1")
    assert disposition_of(status, restarts=0, late=True) == "over"


def test_a_second_start_of_the_same_job_does_not_take_the_first_for_its_own_end() -> None:
    slurm = get_scheduler("slurm")
    again = "JobId=5 JobState=RUNNING Reason=None Requeue=1 Restarts=1 PreemptTime=None"
    inside = slurm.restarts({"SLURM_RESTART_COUNT": "1"})
    assert disposition_of(slurm.parse_status(again, 0, "5"), restarts=inside, late=False) == "runs"


def test_a_job_of_pbs_that_is_ended_at_its_walltime_still_counts_as_running() -> None:
    status = get_scheduler("pbs").parse_status('{"Jobs": {"1.head": {"job_state": "R", "substate": 42}}}', 0, "1.head")
    assert disposition_of(status, restarts=0, late=True) == "over"
    assert disposition_of(status, restarts=0, late=False) == "runs"
