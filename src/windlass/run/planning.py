"""From a request to a plan. Starts and writes nothing.

Also the run as a value: a plan in its folder, and what it takes to start it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windlass.base.settings import Settings, read_settings
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.plan.forbidden import refuse_forbidden
from windlass.plan.inputs import PlanningContext, Secrets
from windlass.plan.plan import make_plan
from windlass.plan.show import headline
from windlass.run.context import gather_context
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run that can be started. Its plan is saved in its folder."""

    plan: Plan
    secrets: Secrets
    """What the plan hides; empty where the folder's file holds it already."""
    folder: RunFolder
    context: PlanningContext
    view: OutputView
    environ: Mapping[str, str]
    quiet: bool = False
    """Nothing about the run itself is noted on the view unless something fails."""

    @property
    def settings(self) -> Settings:
        return read_settings(self.environ)

    def announce(self) -> None:
        """Note the plan's warnings and its headline on the view."""
        if self.quiet:
            return
        for remark in self.plan.remarks:
            if remark.severity == "warning":
                self.view.note(f"windlass: warning: {remark.line()}")
        self.view.note(f"windlass: {headline(self.plan)}; run folder {self.folder.path}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRequest:
    """A plan, what it hides, the request with the user's defaults filled in, and the context that it was made in."""

    request: Request
    plan: Plan
    secrets: Secrets
    context: PlanningContext


def plan_request(request: Request, environ: Mapping[str, str], *, here: bool | None = None) -> PlannedRequest:
    """The plan of a request, the same whichever command asks: for this machine inside an allocation and where no
    scheduler rules, else for compute nodes. `here` decides it instead. Starts and writes nothing."""
    request, context = gather_context(request, read_settings(environ), environ=environ, here=here)
    return _planned(request, context)


def plan_to_run(request: Request, environ: Mapping[str, str], *, allow_login: bool = False) -> PlannedRequest:
    """The plan of a request that is to run from here, now. Raises `UsageError` on a login node."""
    settings = read_settings(environ)
    request, context = gather_context(request, settings, environ=environ, here=True)
    allowed = allow_login or settings.allow_login
    refuse_forbidden([("--allow-login", "")] if allowed else (), context.forbidden)
    _refuse_login(context, request, allowed=allowed)
    return _planned(request, context)


def _planned(request: Request, context: PlanningContext) -> PlannedRequest:
    plan, secrets = make_plan(request, context)
    return PlannedRequest(request=request, plan=plan, secrets=secrets, context=context)


def _refuse_login(context: PlanningContext, request: Request, *, allowed: bool) -> None:
    """On a login node ranks would disturb everybody; where a scheduler rules the nodes, it has to be asked."""
    if context.allocation is not None or request.scheduler == "none" or allowed:
        return
    detection, site = context.detection, context.site
    if detection is not None and detection.login.verdict == "yes" and site.file.login_refuse:
        raise UsageError(
            f"this is a login node of {site.name} ({detection.login.because})",
            hint="use `windlass submit` with the same words, or get nodes by `windlass alloc`; --allow-login overrides",
        )
    if site.file.scheduler.kind != "none":
        raise UsageError(
            f"{site.name} has a scheduler ({site.file.scheduler.kind}), and this is not inside a job",
            hint="use `windlass submit`, or get nodes by `windlass alloc`; --scheduler none runs on this machine alone",
        )
