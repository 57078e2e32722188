"""Hand a batch script to the scheduler."""

from __future__ import annotations

from windlass.errors import MachineError
from windlass.model.plan import Plan
from windlass.procs.command import run_command, which
from windlass.schedulers import get_scheduler

_SUBMIT_TIMEOUT_S = 60.0


def submit_script(plan: Plan, script: str) -> str:
    """Submit and return the job id. A refusal is an error in words, with what to do about it."""
    scheduler = get_scheduler(plan.scheduler)
    argv = scheduler.submit_argv(script)
    if which(argv[0]) is None:
        raise MachineError(
            f"{argv[0]} is not here, so nothing was submitted; the script is {script}",
            hint=f"submit from a login node of {plan.site}",
        )
    done = run_command(argv, timeout_s=_SUBMIT_TIMEOUT_S, check=False)
    if done.code != 0:
        raise scheduler.explain_refusal(done.code, done.stderr + done.stdout)
    return scheduler.parse_submit(done.stdout)
