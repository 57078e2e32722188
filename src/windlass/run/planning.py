"""Create a plan from a request, without starting or writing anything.

Also defines `Run`: a plan in its folder, and everything that is needed to start it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from windlass.base.settings import Settings, read_settings
from windlass.errors import UsageError
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.plan.components import plan_whole
from windlass.plan.forbidden import refuse_forbidden
from windlass.plan.inputs import PlanningContext, Secrets
from windlass.plan.render.variables import JobFacts
from windlass.plan.show import headline
from windlass.run.context import gather_context
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView
from windlass.run.rendezvous import is_free, master_address, master_port


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run that can be started. Its plan is saved in its folder."""

    plan: Plan
    secrets: Secrets
    """The values that the plan redacts. Empty if the folder's file already contains them."""
    folder: RunFolder
    context: PlanningContext
    view: OutputView
    environ: Mapping[str, str]
    quiet: bool = False
    """Show only failures on the view, no notes about the run itself."""

    @property
    def settings(self) -> Settings:
        return read_settings(self.environ)

    def rendezvous(self, hosts: tuple[str, ...], start_id: str) -> JobFacts:
        """Return address and port, checked on this node or by the first node before any rank starts.

        Each start has a new port, because the port of the last start may still be in use.
        """
        plan, folder, context = self.plan, self.folder, self.context
        free = is_free if context.on_node else lambda port: port not in context.taken_ports
        return JobFacts(
            run_dir=str(folder.path),
            run_id=folder.run_id,
            uid=os.getuid(),
            master_addr=master_address(plan, hosts, self.environ),
            master_port=master_port(plan, plan.job_id, start_id, free),
            job_id=plan.job_id or folder.run_id,
            deadline_s=context.allocation.end_time_s if context.allocation else None,
        )

    def announce(self) -> None:
        """Show the plan's warnings and its headline on the view."""
        if self.quiet:
            return
        for remark in self.plan.remarks:
            if remark.severity == "warning":
                self.view.note(f"windlass: warning: {remark.line()}")
        self.view.note(f"windlass: {headline(self.plan)}; run folder {self.folder.path}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRequest:
    """A plan, its redacted values, the request with the user's defaults filled in, and the planning context."""

    request: Request
    plan: Plan
    secrets: Secrets
    context: PlanningContext


def plan_request(request: Request, environ: Mapping[str, str], *, here: bool | None = None) -> PlannedRequest:
    """Plan a request. All commands get the same plan. Starts and writes nothing.

    The plan is for this machine inside an allocation and where there is no scheduler, otherwise for compute nodes.
    `here` overrides this rule.
    """
    request, context = gather_context(request, read_settings(environ), environ=environ, here=here)
    return _planned(request, context)


def plan_to_run(request: Request, environ: Mapping[str, str], *, allow_login: bool = False) -> PlannedRequest:
    """Plan a request that will run from here, now. Raises `UsageError` on a login node."""
    settings = read_settings(environ)
    request, context = gather_context(request, settings, environ=environ, here=True)
    allowed = allow_login or settings.allow_login
    refuse_forbidden([("--allow-login", "")] if allowed else (), context.forbidden)
    _refuse_login(context, request, allowed=allowed)
    return _planned(request, context)


def _planned(request: Request, context: PlanningContext) -> PlannedRequest:
    plan, secrets = plan_whole(request, context)
    return PlannedRequest(request=request, plan=plan, secrets=secrets, context=context)


def _refuse_login(context: PlanningContext, request: Request, *, allowed: bool) -> None:
    """Refuse to run on a login node, where ranks would disturb other users. Ask the scheduler for nodes instead."""
    if context.allocation is not None or request.scheduler == "none" or allowed:
        return
    detection, site = context.detection, context.site
    if detection is not None and detection.login.verdict == "yes" and site.file.login_refuse:
        raise UsageError(
            f"this is a login node of {site.name} ({detection.login.because})",
            hint="use `windlass submit` with the same arguments, or get nodes with `windlass alloc`; --allow-login "
            "overrides this check",
        )
    if site.file.scheduler.kind != "none":
        raise UsageError(
            f"{site.name} has a scheduler ({site.file.scheduler.kind}), and this is not inside a job",
            hint="use `windlass submit`, or get nodes with `windlass alloc`; --scheduler none runs only on this "
            "machine",
        )
