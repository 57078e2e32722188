"""Find the scheduler's commands, and ask the scheduler about nodes, limits and accounts.

The commands are searched in PATH, then in the folder that the scheduler's configuration names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from windlass.backends.launchers import mpiexec_kind
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobStatus, Scheduler
from windlass.base.procs.command import run_command, which
from windlass.errors import MachineError, WindlassError
from windlass.model.finding import Finding
from windlass.model.plan import Plan
from windlass.model.request import Allocation, PartitionOffer, Request
from windlass.model.site import QueueSpec, Site
from windlass.node.sys.reading import read_text

_JOB_ID = re.compile(r"\w[\w.\[\]/-]{0,200}")
_ASK_TIMEOUT_S = 15.0
_CHECK_TIMEOUT_S = 2.0
"""Timeout of a query that only warns the user about a likely refusal."""


def scheduler_environ(scheduler: Scheduler, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the scheduler's commands.

    Its folder comes last: the PBS folder contains an mpiexec.
    """
    folder = scheduler.program_folder(environ, lambda path: read_text(path, errors="surrogateescape", follow=True))
    path = environ.get("PATH", "/usr/bin:/bin")
    if folder is None or folder in path.split(":"):
        return dict(environ)
    return {**environ, "PATH": f"{path}:{folder}"}


def ask_status(
    scheduler: Scheduler, job_id: str, environ: Mapping[str, str], timeout_s: float, *, from_job: bool = False
) -> JobStatus:
    """Ask the scheduler for the status of a job.

    `from_job`: this process runs in a job of that scheduler. Raises `WindlassError` if the command cannot be run.
    """
    if not _JOB_ID.fullmatch(job_id):  # a run folder of others may name anything: options, `1@another.server`
        raise MachineError(
            f"{job_id[:80]!r} is not the id of a job", hint="the file job_id or owner.json of the run folder is damaged"
        )
    argv = scheduler.status_argv(job_id)
    if from_job:
        argv = scheduler.outside_argv(argv, environ)
    done = run_command(argv, timeout_s=timeout_s, env=scheduler_environ(scheduler, environ), check=False)
    return scheduler.parse_status(done.stdout + done.stderr, done.code, job_id)


def require_submit_program(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raise `MachineError` if the submit command is not installed here."""
    program = get_scheduler(plan.scheduler).submit_command[0]
    _require(plan, environ, program, f"{program} is not installed here, so nothing was submitted", "the script")


def require_interactive_program(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raise `MachineError` if the command for interactive allocations is not installed here."""
    program = get_scheduler(plan.scheduler).interactive_program[0]
    _require(plan, environ, program, f"{program} is not installed here, so nothing was allocated", "the command")


def _require(plan: Plan, environ: Mapping[str, str], program: str, problem: str, printed: str) -> None:
    scheduler = get_scheduler(plan.scheduler)
    if which(program, scheduler_environ(scheduler, environ)) is not None:
        return
    looked = scheduler.program_folder(environ, lambda path: read_text(path, errors="surrogateescape", follow=True))
    raise MachineError(
        problem,
        hint=f"run this on a login node of {plan.site}, or add it to PATH"
        + (f" (it is not in {looked} either)" if looked else "")
        + f"; --dry-run prints {printed}",
    )


def with_seen_mpi(request: Request, site: Site, environ: Mapping[str, str]) -> tuple[Site, Finding | None]:
    """Return the site with the launcher of the mpiexec found here, if a PBS cluster has no configured MPI."""
    guessed = site.origin_of("launcher.kind").grade == "derived" and not request.launcher
    if not guessed or (request.scheduler or site.file.scheduler.kind) != "pbs":
        return site, None
    hint = "give the launcher with --launcher openmpi, hydra (MPICH, Intel MPI) or pals (HPE Cray)"
    folders = f"{request.activate}/bin:" if request.activate else ""
    path = which("mpiexec", {**environ, "PATH": folders + environ.get("PATH", "")})
    if path is None:
        return site, Finding("mpi-unknown", "warning", "unknown MPI launcher: no mpiexec is in PATH here", hint)
    try:
        done = run_command((path, "--version"), timeout_s=_CHECK_TIMEOUT_S, env=environ, check=False)
        said = done.stdout + done.stderr
    except WindlassError as error:
        said = str(error)
    kind = mpiexec_kind(str(Path(path).resolve()), said)
    if kind is None:
        first = next(iter(said.splitlines()), "nothing")
        return site, Finding("mpi-unknown", "warning", f"which MPI {path} is of is not known: it says {first!r}", hint)
    launcher = msgspec.structs.replace(site.file.launcher, kind=kind)
    site = msgspec.structs.replace(site, file=msgspec.structs.replace(site.file, launcher=launcher))
    return site, Finding("mpi-seen", "note", f"{path} is the launcher of {kind}: the nodes need the same one")


def busy_hosts(request: Request, allocation: Allocation, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the allocation that another run uses, if the request can use others.

    A step on a shared node would wait for the other run. Empty if the scheduler does not answer.
    """
    if request.hosts or not request.nodes or request.nodes >= len(allocation.hosts):
        return ()
    scheduler = get_scheduler(allocation.scheduler)
    argv = scheduler.busy_argv(environ)
    if argv is None:
        return ()
    try:
        return scheduler.parse_busy(run_command(argv, timeout_s=_ASK_TIMEOUT_S, env=environ).stdout, environ)
    except WindlassError:
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerAnswers:
    """The scheduler's answers about a cluster that no site file describes."""

    offers: tuple[PartitionOffer, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    accounts: tuple[str, ...] = ()
    remarks: tuple[Finding, ...] = ()
    seen_mpi: tuple[Site, Finding | None] | None = None
    """The result of `with_seen_mpi`, if it was determined in the same call."""


def ask_scheduler(site: Site, request: Request, environ: Mapping[str, str]) -> SchedulerAnswers:
    """Ask the scheduler for nodes, limits and accounts, and mpiexec for its version, all in parallel.

    An unanswered query leaves its part empty and adds a remark if the part matters.
    """
    scheduler = get_scheduler(request.scheduler or site.file.scheduler.kind)
    found = scheduler_environ(scheduler, environ)
    offers_argv = scheduler.offers_argv()
    if offers_argv is None:
        return SchedulerAnswers()
    user = environ.get("USER") or environ.get("LOGNAME")
    accounts_argv = scheduler.accounts_argv(user) if user and request.account else None

    def ask(argv: tuple[str, ...] | None, timeout_s: float) -> str | WindlassError | None:
        """Return the output of a command, or its failure. None if the command is not installed here."""
        if argv is None or not which(argv[0], found):
            return None
        try:
            return run_command(argv, timeout_s=timeout_s, env=found).stdout
        except WindlassError as error:
            return error

    from concurrent.futures import ThreadPoolExecutor  # imported here: rarely needed, and slow to import

    with ThreadPoolExecutor() as pool:
        mpi = pool.submit(with_seen_mpi, request, site, environ)
        offers = pool.submit(ask, offers_argv, _ASK_TIMEOUT_S)
        queues = [pool.submit(ask, argv, _CHECK_TIMEOUT_S) for argv in scheduler.queues_argv()]
        accounts = pool.submit(ask, accounts_argv, _CHECK_TIMEOUT_S)
    said, limits, known = offers.result(), [each.result() for each in queues], accounts.result()
    remarks = []
    silent = next((each for each in (*limits, known) if isinstance(each, WindlassError)), None)
    if not isinstance(said, str):
        why = f"did not answer: {said}" if said else "is not installed here"
        text = f"the hardware of the nodes is unknown: {offers_argv[0]} {why}"
        hint = "give --gpus-per-node and --ranks-per-node, or describe the cluster in a site file"
        remarks.append(Finding("offers-unknown", "warning", text, hint))
    elif silent:
        remarks.append(Finding("limits-unknown", "note", f"limits and accounts were not all checked: {silent}"))
    return SchedulerAnswers(
        offers=scheduler.parse_offers(said) if isinstance(said, str) else (),
        queues=scheduler.parse_queues("\n".join(each for each in limits if isinstance(each, str))),
        accounts=scheduler.parse_accounts(known) if isinstance(known, str) else (),
        remarks=tuple(remarks),
        seen_mpi=mpi.result(),
    )
