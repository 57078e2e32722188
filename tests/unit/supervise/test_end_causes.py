"""Ways in which a job ends without a record, as Slurm, PBS and Flux report them: each gets its cause, and the sentence
says who reported it. Answers of PBS and Flux are captured ones, or captured ones with other fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from captured import text
from looping import each
from planning import plan_for
from windlass.model.request import Allocation
from windlass.plan.inputs import Secrets
from windlass.run.folder import make_folder
from windlass.run.supervise.runs import state_of

_FULL = "OSError: [Errno 28] No space left on device: '/scratch/out'"

_FLUX_MEMORY = "1.5s: flux-shell[0]: ERROR: oom: Memory cgroup out of memory: killed 1 task on node1."


def _slurm(fields: str) -> str:
    return f"JobId=7 JobName=x {fields}"


def _pbs(name: str, **changed: object) -> str:
    data = json.loads(text(f"openpbs/{name}.out"))
    job = next(iter(data["Jobs"].values()))
    job.update(changed)
    return json.dumps({**data, "Jobs": {"7": {key: value for key, value in job.items() if value is not None}}})


def _flux(name: str, **changed: object) -> str:
    job: dict[str, Any] = json.loads(text(f"flux/jobs-one-json-{name}.stdout"))
    return json.dumps({**job, **changed})


def _raised(kind: str, note: str) -> dict[str, object]:
    return {"occurred": True, "severity": 0, "type": kind, "note": note}


_FAIL3, _DONE = "qstat_x_f_json_fail3", "qstat_x_f_json_finished"
WAYS = [
    ("slurm", "script error", _slurm("JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0"), "failed", "with code 3"),
    ("slurm", "time limit", _slurm("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:0"), "killed", "its time limit"),
    ("slurm", "cancel", _slurm("JobState=CANCELLED Reason=None ExitCode=0:15"), "stopped", "was cancelled"),
    ("slurm", "stop while waiting", _slurm("JobState=CANCELLED Reason=None ExitCode=0:0"), "stopped", "was cancelled"),
    ("slurm", "prologue", _slurm("JobState=PENDING Reason=launch_failed_requeued_held"), "failed", "prologue"),
    ("slurm", "full disk", _slurm("JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0"), "failed", "No space left"),
    ("slurm", "node failure", _slurm("JobState=NODE_FAIL Reason=NodeDown ExitCode=1:0"), "killed", "lost a node"),
    ("slurm", "memory", _slurm("JobState=OUT_OF_MEMORY Reason=None ExitCode=0:125"), "failed", "ran out of memory"),
    ("slurm", "preempted", _slurm("JobState=PREEMPTED Reason=None ExitCode=0:0"), "killed", "was preempted"),
    ("slurm", "windlass killed", _slurm("JobState=FAILED Reason=RaisedSignal:9 ExitCode=0:9"), "failed", "code 137"),
    ("pbs", "script error", _pbs(_FAIL3), "failed", "with code 3"),
    ("pbs", "time limit", _pbs("qstat_x_f_json_sig_walltime"), "killed", "its time limit"),
    ("pbs", "cancel", _pbs("qstat_x_f_json_sig_qdel"), "stopped", "was cancelled"),
    ("pbs", "stop while waiting", _pbs("qstat_x_f_json_deleted_before_it_ran"), "stopped", "was cancelled"),
    ("pbs", "prologue", _pbs(_FAIL3, Exit_status=-1), "failed", "prologue"),
    ("pbs", "full disk", _pbs(_FAIL3, Exit_status=1), "failed", "No space left"),
    ("pbs", "node failure", _pbs("qstat_x_f_json_lost_node"), "killed", "lost a node"),
    ("pbs", "memory", _pbs(_FAIL3, Exit_status=-27), "failed", "ran out of memory"),
    ("pbs", "windlass killed", _pbs("qstat_x_f_json_killself"), "failed", "with code 137"),
    ("flux", "script error", _flux("failed3"), "failed", "with code 3"),
    ("flux", "time limit", _flux("timedout"), "killed", "its time limit"),
    ("flux", "cancel", _flux("canceled-running"), "stopped", "was cancelled"),
    ("flux", "stop while waiting", _flux("canceled-pending"), "stopped", "was cancelled"),
    ("flux", "full disk", _flux("failed3", returncode=1), "failed", "No space left"),
    (
        "flux",
        "node failure",
        _flux("failed3", returncode=143, exception=_raised("exec", "node failure on node4 (rank 3)")),
        "killed",
        "lost a node",
    ),
    (
        "flux",
        "prologue",
        _flux("failed3", exception=_raised("prolog", "prolog exited with exit code=1")),
        "failed",
        "prologue",
    ),
    ("slurm", "unsatisfiable", _slurm("JobState=PENDING Reason=PartitionNodeLimit"), "waiting", "can never run"),
    ("pbs", "unsatisfiable", _pbs("qstat_f_json_too_many"), "waiting", "can never run"),
    (
        "flux",
        "unsatisfiable",
        _flux("canceled-pending", result="FAILED", exception=_raised("alloc", "unsatisfiable request")),
        "failed",
        "can never run",
    ),
    ("flux", "windlass killed", _flux("failed3", returncode=137), "failed", "with code 137"),
    ("flux", "memory", _flux("failed3", returncode=137), "failed", "out of memory"),
    (
        "flux",
        "preempted",
        _flux("failed3", exception=_raised("preempt", "killbot/overkill")),
        "killed",
        "was preempted",
    ),
    # PBS does not tell a user that a job was deleted for another one. By default it suspends the job.
    ("pbs", "preempted", _pbs("qstat_f_json_running", job_state="S", substate=45), "waiting", "was preempted"),
    ("slurm", "signal", _slurm("JobState=FAILED Reason=RaisedSignal:11 ExitCode=0:11"), "failed", "with code 139"),
    ("pbs", "signal", _pbs(_FAIL3, Exit_status=267), "failed", "with code 139"),
    ("flux", "signal", _flux("failed3", returncode=139), "failed", "with code 139"),
]


@each(("scheduler", "way", "answer", "state", "words"), WAYS, ids=lambda value: str(value)[:20])
def test_the_cause_of_a_job_without_a_record_comes_from_its_scheduler(
    tmp_path: Path, scheduler: str, way: str, answer: str, state: str, words: str
) -> None:
    folder = make_folder(str(tmp_path / "r"), tmp_path, "x")
    plan = plan_for(
        f"generic-{scheduler}", "true", allocation=Allocation(scheduler=scheduler, job_id="7", hosts=("n1",))
    )
    folder.save_plan(plan[0], Secrets())
    folder.write("job_id", "7\n")
    if way == "full disk":
        folder.write("job.log", f"step 1\n{_FULL}\n")
    if way == "memory" and scheduler == "flux":  # which says it in the log of the job alone
        folder.write("job.log", f"step 1\n{_FLUX_MEMORY}\n")
    (tmp_path / "answer").write_text(answer + "\n")
    for name in ("scontrol", "sacct", "squeue", "qstat", "flux"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat '{tmp_path}/answer'\n")
        program.chmod(0o755)
    found = state_of(folder, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert found.state == state and words in found.why and f"{scheduler} reports" in found.why, found
