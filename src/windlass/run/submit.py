"""Submit jobs: write the batch script to its run folder and pass it to the scheduler.

Also interactive allocations, which request the nodes of the same plan.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobState
from windlass.base.notation.shell import quote
from windlass.base.procs.command import become, own_argv, run_command
from windlass.base.settings import read_settings
from windlass.errors import UsageError, WindlassError
from windlass.model.origin import Argument, argv_of
from windlass.model.plan import Plan, plan_to_json
from windlass.model.request import Request
from windlass.plan.queues import refuse_incomplete
from windlass.plan.render.batch_script import batch_script, printed_script, standalone_script
from windlass.plan.shape import run_name
from windlass.run.command_context import node_local_folders
from windlass.run.folder import BATCH_FILE, RunFolder, discard, folder_path, make_folder
from windlass.run.interpreter import check_activate
from windlass.run.jit_caches import KEEP_FILE
from windlass.run.planning import PlannedRequest, plan_request
from windlass.run.scheduler_commands import (
    ask_status,
    require_interactive_program,
    require_submit_program,
    scheduler_environ,
)
from windlass.run.trust import carry_file_key, key_digest, plan_digest

_SUBMIT_TIMEOUT_S = 60.0
_LOOK_S = 8.0
"""A scheduler examines a new job within seconds, and reports why it waits."""
_REASON_S = 1.5
"""The first reason may differ from the reason after the scheduler's first pass."""
_EVERY_S = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A batch script in its run folder. `job_id` is None until the scheduler has accepted it."""

    plan: Plan
    folder: RunFolder
    script: Path
    job_id: str | None = None


def print_submission(request: Request, environ: Mapping[str, str], *, standalone: bool = False) -> tuple[Plan, str]:
    """Return a plan and a batch script that needs no run folder and can be submitted unchanged. Writes nothing."""
    request = _standalone_request(request, standalone)
    runs_dir, name = read_settings(environ).runs_dir, run_name(request)
    path = str(folder_path(request.run_dir, runs_dir, name))
    plan = plan_job(request, environ).plan
    if standalone:
        return plan, standalone_script(plan, path, log=False)
    folder = quote(path)
    if not request.run_dir:  # each job of this script has a separate folder
        by_job = f'-"${{{get_scheduler(plan.scheduler).job_id_variable}:-$$}}"'
        folder = quote(str(folder_path(str(runs_dir / name), runs_dir, name))) + by_job
    data = plan_to_json(plan)
    text = data.decode("utf-8", "surrogateescape")
    return plan, printed_script(plan, text, plan_digest(data), folder, own_argv())


def prepare_submission(request: Request, environ: Mapping[str, str], *, standalone: bool = False) -> Submission:
    """Create a run folder with the plan and the batch script, without submitting it.

    Creates nothing if the request is invalid or if the submit command is missing.
    """
    request = _standalone_request(request, standalone)
    settings, name = read_settings(environ), run_name(request)
    planned = plan_job(request, environ)
    plan = planned.plan
    require_submit_program(plan, environ)
    _script(
        plan, str(folder_path(request.run_dir, settings.runs_dir, name)), standalone
    )  # raises an error if the request is invalid
    folder = make_folder(request.run_dir, settings.runs_dir, name, state_dir=settings.state_dir)
    folder.claim()
    if plan.keep_caches:
        carry_file_key(folder.path, Path(plan.keep_caches) / KEEP_FILE, settings.state_dir)
    script = write_batch_file(plan, folder, standalone=standalone)
    folder.save_plan(plan, planned.secrets)
    return Submission(plan=plan, folder=folder, script=script)


def write_batch_file(plan: Plan, folder: RunFolder, *, standalone: bool = False) -> Path:
    """Write the batch script of a run to its folder."""
    text = _script(plan, str(folder.path), standalone, key_digest(folder.path))
    return folder.write_signed(BATCH_FILE, text.encode("utf-8", "surrogateescape"), mode=0o700)


def submit(prepared: Submission, environ: Mapping[str, str]) -> Submission:
    """Submit the script to the scheduler. Returns the submission with the job id, which is saved in the folder.

    If the job is refused, everything is removed. If the scheduler gives no answer or an unknown one, the folder remains
    and records the failure.
    """
    try:
        job_id = submit_script(prepared.plan, str(prepared.script), environ)
    except UsageError:
        discard(prepared.folder)
        raise
    except BaseException as error:
        prepared.folder.forget_secrets()  # no job will use them
        prepared.folder.failed("submit", error)
        raise
    prepared.folder.write("job_id", job_id + "\n")
    return Submission(plan=prepared.plan, folder=prepared.folder, script=prepared.script, job_id=job_id)


def why_never_starts(submitted: Submission, environ: Mapping[str, str]) -> str:
    """Return the scheduler's reason why this job will never start. Empty if it may start or if there is no reason.

    Polls until the scheduler has examined the job, which takes a few seconds at most.
    """
    scheduler, began = get_scheduler(submitted.plan.scheduler), time.monotonic()
    while (passed := time.monotonic() - began) < _LOOK_S:
        try:
            status = ask_status(scheduler, submitted.job_id or "", environ, _LOOK_S - passed)
        except WindlassError:
            return ""
        if status.never:
            return status.reason or "no reason given"
        if status.state is not JobState.QUEUED or (status.reason and passed > _REASON_S):
            return ""
        time.sleep(_EVERY_S)
    return ""


def submit_script(plan: Plan, script: str, environ: Mapping[str, str], *, from_job: bool = False) -> str:
    """Submit and return the job id. A refusal raises an error with a hint.

    `from_job`: this process is a job, and the new job goes to the scheduler that runs it.
    """
    scheduler = get_scheduler(plan.scheduler)
    require_submit_program(plan, environ)
    argv = scheduler.submit_argv(script)
    if from_job:
        argv = scheduler.outside_argv(argv, environ)
    done = run_command(argv, timeout_s=_SUBMIT_TIMEOUT_S, env=scheduler_environ(scheduler, environ), check=False)
    if done.code != 0:
        raise scheduler.explain_refusal(done.code, done.stderr + done.stdout)
    return scheduler.parse_submit(done.stdout)


def _standalone_request(request: Request, standalone: bool) -> Request:
    """Return the request for a script without windlass. A container is not changed, because no node is probed."""
    if not standalone:
        return request
    if request.components:
        raise UsageError(
            "--standalone with a job file: windlass has to start the components in the job",
            hint="leave --standalone out",
        )
    if request.host_libs not in {None, "none"}:
        raise UsageError(
            "--standalone and --host-libs: each node has to find the dependencies of the libraries",
            hint="leave --standalone out: windlass has to run in the job",
        )
    if request.keep_caches:
        raise UsageError(
            "--standalone with --keep-caches: windlass has to check and save the caches in the job",
            hint="leave one of them out",
        )
    if request.watch:
        raise UsageError(
            "--standalone cannot be combined with --watch: no windlass process runs in the job",
            hint="leave one of them out",
        )
    if request.supervised:
        raise UsageError(
            "--standalone with --restarts, --spares, --hang-after or --until-done: no windlass process runs in the job",
            hint="leave --standalone out: windlass has to run in the job",
        )
    return msgspec.structs.replace(request, host_libs="none") if request.container else request


def plan_job(request: Request, environ: Mapping[str, str]) -> PlannedRequest:
    """Plan a job for the site's scheduler. Raises `UsageError` for a job that it would refuse. Writes nothing."""
    planned = plan_request(request, environ, here=False)
    plan = planned.plan
    if plan.scheduler == "none":
        raise UsageError(
            f"{plan.site} has no scheduler, so windlass cannot submit a job or allocate nodes",
            hint="use `windlass run` on this machine; for a job on another machine, use --site NAME --dry-run",
        )
    site = planned.context.site
    check_activate(planned.request, node_local_folders(site, environ))
    refuse_incomplete(planned.request, site)
    return planned


def _script(plan: Plan, run_dir: str, standalone: bool, signed_by: str = "") -> str:
    if standalone:
        return standalone_script(plan, run_dir)
    return batch_script(plan, run_dir, own_argv(), signed_by)


@dataclass(frozen=True, kw_only=True, slots=True)
class InteractiveAllocation:
    """A plan for an allocation and the command that requests it."""

    plan: Plan
    arguments: tuple[Argument, ...]
    """The scheduler's command and its options, each with its reason."""
    command: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        return (*argv_of(self.arguments), *self.command)


def plan_allocation(
    request: Request, environ: Mapping[str, str], command: tuple[str, ...] = ()
) -> InteractiveAllocation:
    """Return the allocation of a request, without requesting it. `command` replaces the interactive shell."""
    plan = plan_job(request, environ).plan
    scheduler = get_scheduler(plan.scheduler)
    return InteractiveAllocation(
        plan=plan,
        arguments=scheduler.interactive_arguments(plan.directives),
        command=scheduler.interactive_command(command),
    )


def enter_allocation(allocation: InteractiveAllocation, environ: Mapping[str, str]) -> NoReturn:
    """Replace this process with the scheduler's command, which takes over the terminal and the exit code."""
    scheduler = get_scheduler(allocation.plan.scheduler)
    if scheduler.in_allocation(environ) and not scheduler.nests:
        raise UsageError(
            f"this is job {environ.get(scheduler.job_id_variable, '')} already",
            hint="`windlass run` uses its nodes; leave the job first to get other nodes",
        )
    require_interactive_program(allocation.plan, environ)
    become(allocation.argv, scheduler_environ(scheduler, environ))
