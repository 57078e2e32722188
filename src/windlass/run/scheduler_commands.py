"""Where the scheduler's own commands are found: by PATH, and then in the folder that its configuration names."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobStatus, Scheduler
from windlass.base.procs.command import run_command, which
from windlass.errors import MachineError
from windlass.model.plan import Plan
from windlass.node.sys.reading import read_text


def scheduler_environ(scheduler: Scheduler, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the scheduler's commands. Its folder comes last: PBS's holds an mpiexec of its own."""
    folder = scheduler.program_folder(environ, lambda path: read_text(path, errors="surrogateescape", follow=True))
    path = environ.get("PATH", "/usr/bin:/bin")
    if folder is None or folder in path.split(":"):
        return dict(environ)
    return {**environ, "PATH": f"{path}:{folder}"}


def ask_status(
    scheduler: Scheduler, job_id: str, environ: Mapping[str, str], timeout_s: float, *, from_job: bool = False
) -> JobStatus:
    """What the scheduler says of a job. `from_job`: this process runs in a job of that scheduler. Raises
    `WindlassError` where its command cannot be run."""
    argv = scheduler.status_argv(job_id)
    if from_job:
        argv = scheduler.outside_argv(argv, environ)
    done = run_command(argv, timeout_s=timeout_s, env=scheduler_environ(scheduler, environ), check=False)
    return scheduler.parse_status(done.stdout + done.stderr, done.code, job_id)


def require_submit_program(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raises `MachineError` where there is nothing here to submit with."""
    program = get_scheduler(plan.scheduler).submit_command[0]
    _require(plan, environ, program, f"{program} is not here, so nothing was submitted", "the script")


def require_interactive_program(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raises `MachineError` where there is nothing here to ask for an allocation with."""
    program = get_scheduler(plan.scheduler).interactive_program[0]
    _require(plan, environ, program, f"{program} is not here, so there is no allocation", "the command")


def _require(plan: Plan, environ: Mapping[str, str], program: str, problem: str, printed: str) -> None:
    scheduler = get_scheduler(plan.scheduler)
    if which(program, scheduler_environ(scheduler, environ)) is not None:
        return
    looked = scheduler.program_folder(environ, lambda path: read_text(path, errors="surrogateescape", follow=True))
    raise MachineError(
        problem,
        hint=f"do it on a login node of {plan.site}, or bring it into PATH"
        + (f" (it is not in {looked} either)" if looked else "")
        + f"; --dry-run prints {printed}",
    )
