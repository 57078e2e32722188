"""windlass as a library: plan a request, start a run, resume one, submit one.

These functions do the same as the commands, without a terminal. Every function takes the environment to work with
(`environ`, by default a copy of this process's environment) and an output view (`view`, by default one that shows
nothing). Call `start` and the functions that start runs in the main thread, because they handle signals.
"""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from windlass.agents.ship import script_text
from windlass.base.settings import current_environ, read_settings
from windlass.errors import MachineError
from windlass.model.finding import Finding
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.model.request import Request
from windlass.run import once, planning, submit
from windlass.run.folder import RunFolder, make_folder, open_folder, read_plan
from windlass.run.once import run_once
from windlass.run.output import OutputView, ViewMaker, terminal_view
from windlass.run.planning import PlannedRequest, Run
from windlass.run.rendezvous import plan_hosts
from windlass.run.sidecars.ahead import record_ahead
from windlass.run.submit import Submission
from windlass.run.supervise import saved
from windlass.run.supervise.attempts import own
from windlass.run.supervise.replan import next_plan, spare_hosts

_MAX_CHECKS = 3

__all__ = [
    "OutputView",
    "Plan",
    "PlannedRequest",
    "Request",
    "Run",
    "RunFolder",
    "RunRecord",
    "SelfTest",
    "Submission",
    "new_run",
    "plan_request",
    "resume",
    "run",
    "saved_run",
    "selftest",
    "start",
    "submit_request",
    "terminal_view",
]


def plan_request(
    request: Request, *, environ: Mapping[str, str] | None = None, here: bool | None = None
) -> PlannedRequest:
    """Return the plan of a request, as `windlass plan` shows it.

    Inside an allocation and without a scheduler, the plan is for this machine. Otherwise it is for compute nodes.
    `here`: True for this machine, False for nodes of a job. Starts and writes nothing.
    """
    return planning.plan_request(request, _given(environ), here=here)


def new_run(
    request: Request,
    *,
    environ: Mapping[str, str] | None = None,
    view: ViewMaker | None = None,
    allow_login: bool = False,
    quiet: bool = False,
) -> Run:
    """Return a run that can be started, with its run folder and its saved plan.

    The plan is made for this machine or this allocation. Raises `UsageError` for an invalid request, and creates
    nothing then.
    """
    return once.new_run(request, _given(environ), view or silent_view, allow_login=allow_login, quiet=quiet)


def saved_run(
    path: str | Path,
    *,
    environ: Mapping[str, str] | None = None,
    view: ViewMaker | None = None,
    run_dir: str | None = None,
    signed_by: str = "",
    content: bytes | None = None,
    quiet: bool = False,
) -> Run:
    """Return the run of a saved plan (a file or a run folder), completed with the facts of this job.

    `content` is the plan if no file contains it. `path` is then only its name. Raises `NotTrustedError`, a
    `UsageError`, for a plan that this user neither made nor trusted (`windlass runs trust`).
    """
    return saved.saved_run(
        str(path),
        _given(environ),
        view or silent_view,
        run_dir=run_dir,
        signed_by=signed_by,
        content=content,
        quiet=quiet,
    )


def start(run: Run) -> RunRecord:
    """Start a run and wait until it has ended: once, or supervised if its request asks for supervision.

    Returns the record, also for a run that failed. Raises if the run cannot be started. No process of the run is left
    on return.
    """
    own(run.folder, run.plan.job_id)
    if run.plan.parts:
        from windlass.run.supervise.components import run_components

        return run_components(run, start)
    run = _checked(run) if run.plan.request.check else run
    # Imported here: most runs have neither supervision nor agents.
    if run.plan.request.supervised:
        from windlass.run.supervise.loop import run_supervised

        return run_supervised(run)
    if run.plan.agents is None:
        return run_once(run)
    from windlass.run.sidecars.compose import run_sidecar

    return run_once(run, run_sidecar)


def run(
    request: Request,
    *,
    environ: Mapping[str, str] | None = None,
    view: ViewMaker | None = None,
    allow_login: bool = False,
    quiet: bool = False,
) -> RunRecord:
    """Plan and start a new run, and wait until it has ended."""
    return start(new_run(request, environ=environ, view=view, allow_login=allow_login, quiet=quiet))


def resume(
    folder: RunFolder | str | Path,
    *,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    environ: Mapping[str, str] | None = None,
    view: ViewMaker | None = None,
    quiet: bool = False,
) -> RunRecord | Submission:
    """Resume a run that has ended, with its saved plan or at another size.

    Returns the record if the run was started here. Returns the new job if the run was submitted to its scheduler.
    """
    opened = folder if isinstance(folder, RunFolder) else open_folder(folder)
    ready = saved.resume_run(
        opened, _given(environ), view or silent_view, nodes=nodes, ranks_per_node=ranks_per_node, quiet=quiet
    )
    return start(ready) if isinstance(ready, Run) else ready


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTest:
    """The result of a self-test."""

    record: RunRecord
    findings: list[Finding]
    bundle: Path


def selftest(
    request: Request,
    *,
    environ: Mapping[str, str] | None = None,
    view: ViewMaker | None = None,
    bundle: str | Path | None = None,
) -> SelfTest:
    """Run windlass's own small script instead of the request's command and compare the ranks' results with the plan.

    An archive of all results is written to `bundle` (by default a file in the current directory, named after site and
    time).
    """
    environ = _given(environ)
    settings = read_settings(environ)
    folder = make_folder(request.run_dir, settings.runs_dir, "selftest", state_dir=settings.state_dir)
    program = script_text("windlass.node.checks.selftest:main", {})
    script = folder.write("selftest.py", program)  # a container has access to the run folder
    request = msgspec.structs.replace(request, kind="script", command=(str(script),), run_dir=str(folder.path))
    record = run(request, environ=environ, view=view)
    plan = read_plan(folder.path)
    from windlass.run.selftest_bundle import judge, write_bundle

    findings = judge(plan, folder)
    path = Path(bundle or f"windlass-selftest-{plan.site}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    write_bundle(path, folder, findings, environ, request.env)
    return SelfTest(record=record, findings=findings, bundle=path)


def submit_request(
    request: Request, *, environ: Mapping[str, str] | None = None, standalone: bool = False
) -> Submission:
    """Write the batch script of a request into a new run folder and submit it to the scheduler."""
    environ = _given(environ)
    submitted = submit.submit(submit.prepare_submission(request, environ, standalone=standalone), environ)
    record_ahead(submitted.plan, environ)
    return submitted


def silent_view(plan: Plan) -> OutputView:
    """Return a view that shows nothing.

    The run folder contains the output of the ranks, and the record contains how they ended.
    """
    return OutputView(frozenset(), io.StringIO(), io.StringIO())


def _given(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return current_environ() if environ is None else environ


def _checked(run: Run) -> Run:
    """Return the run on nodes that passed the quick checks. Spare nodes replace the nodes that failed."""
    from windlass.diagnose.doctor.before_run import bad_nodes_of  # only a run with --check needs it

    bad: dict[str, str] = {}
    for _ in range(_MAX_CHECKS):
        if not run.quiet:
            run.view.note("windlass: checking the nodes before the ranks start")
        found = bad_nodes_of(run)
        if not found:
            return run
        bad |= found
        spare = spare_hosts(run.plan, run.context, frozenset(bad))
        gone = [host for host in plan_hosts(run.plan) if host in bad]
        if len(gone) > spare:
            raise MachineError(
                f"{gone[0]} must not be used ({bad[gone[0]]}), and no spare node can replace it",
                hint="ask for more nodes with --spares K; `windlass nodes forgive` uses it again",
            )
        context = msgspec.structs.replace(run.context, bad_hosts=(*run.context.bad_hosts, *found))
        plan = next_plan(run.plan, context, frozenset(bad))
        run.view.note(f"windlass: a spare node replaces {', '.join(gone)}" if gone else "windlass: continuing")
        run = dataclasses.replace(run, plan=plan, context=context)
        run.folder.save_plan(plan, run.secrets)
    raise MachineError("the check finds another bad node each time", hint="`windlass doctor` shows them all")
