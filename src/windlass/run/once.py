"""Run a plan once: resolve the rendezvous, start the ranks, wait until they have ended, and record the result.

Also creates a new run: its plan and its run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windlass.base.settings import read_settings
from windlass.model.record import RunRecord
from windlass.model.request import Request
from windlass.plan.render.variables import JobFacts
from windlass.run.execute import Sidecar, Watch, execute, prepare
from windlass.run.failure.verdict import verdict_lines
from windlass.run.folder import RunFolder, make_folder
from windlass.run.interpreter import missing_module_hint
from windlass.run.jit_caches import finish_caches
from windlass.run.output import OutputView, ViewMaker
from windlass.run.planning import PlannedRequest, Run, plan_to_run
from windlass.run.rendezvous import plan_hosts
from windlass.run.signals import listening
from windlass.run.verdict import Judgement, good_end, judge_once

SidecarMaker = Callable[[Run, JobFacts, tuple[str, ...]], Sidecar | None]
"""Creates the sidecar for these hosts, in a higher layer. None if the plan needs no sidecar."""


def run_once(run: Run, make_sidecar: SidecarMaker = lambda *_: None, watch: Watch | None = None) -> RunRecord:
    """Start a run, show its ranks, and record how it ended. Returns the record, which is saved in the folder."""
    plan, folder = run.plan, run.folder
    try:
        if run.secrets:
            folder.save_plan(plan, run.secrets)
        hosts = plan_hosts(plan)
        facts = run.rendezvous(hosts, folder.run_id)
        run.announce()
        facts = prepare(run, facts, hosts)
    except BaseException:
        folder.forget_secrets()  # nothing has started that could need them
        raise
    sidecar = make_sidecar(run, facts, hosts)
    with listening():  # until everything is cleaned up: a second request to stop must not prevent that
        end = execute(run, facts, hosts, sidecar, watch)
        judged = judge_once(run, end, facts.deadline_s)
        _print_end(run, judged)
        # Last: a job that is being ended has few seconds, and its cause matters more than folders on other nodes.
        finish_caches(plan, folder, facts, run.environ, run.view, in_haste=end.stopped)
    return judged.record


def _print_end(run: Run, judged: Judgement) -> None:
    plan, folder, record = run.plan, run.folder, judged.record
    if judged.verdict is not None and not (run.view.component and record.outcome == "stopped"):
        for line in verdict_lines(judged.verdict, record, folder.path, shown=run.view.shows):
            run.view.note(line)
        said = record.failure.last_lines if record.failure else ()
        if hint := missing_module_hint(plan, tuple(said), run.environ):
            run.view.note(f"windlass: hint: {hint}")
    elif judged.verdict is None and not run.quiet:
        for line in good_end(plan, record, folder):
            run.view.note(line)


def new_run(
    request: Request,
    environ: Mapping[str, str],
    make_view: ViewMaker,
    *,
    allow_login: bool = False,
    quiet: bool = False,
) -> Run:
    """Return a run that can be started: planned, with its folder created and its plan saved there.

    Creates nothing if the request is invalid.
    """
    planned = plan_to_run(request, environ, allow_login=allow_login)
    view = make_view(planned.plan)
    settings = read_settings(environ)
    folder = make_folder(request.run_dir, settings.runs_dir, planned.plan.name, state_dir=settings.state_dir)
    folder.claim()
    folder.save_plan(planned.plan, planned.secrets)
    return planned_run(planned, folder, view, environ, quiet=quiet)


def planned_run(
    planned: PlannedRequest, folder: RunFolder, view: OutputView, environ: Mapping[str, str], *, quiet: bool
) -> Run:
    """Return the run of the plan in this folder."""
    return Run(
        plan=planned.plan,
        secrets=planned.secrets,
        folder=folder,
        context=planned.context,
        view=view,
        environ=environ,
        quiet=quiet,
    )
