"""A new run: planned, in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.base.settings import read_settings
from windlass.model.request import Request
from windlass.run.folder import RunFolder, make_folder
from windlass.run.output import OutputView, ViewMaker
from windlass.run.planning import PlannedRequest, plan_to_run
from windlass.run.run import Run


def new_run(
    request: Request,
    environ: Mapping[str, str],
    make_view: ViewMaker,
    *,
    allow_login: bool = False,
    quiet: bool = False,
) -> Run:
    """A run that can be started: planned, with its folder made and its plan saved there. Makes nothing where the
    request is wrong."""
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
    """The run of a plan that its folder holds."""
    return Run(
        plan=planned.plan,
        secrets=planned.secrets,
        folder=folder,
        context=planned.context,
        view=view,
        environ=environ,
        quiet=quiet,
    )
