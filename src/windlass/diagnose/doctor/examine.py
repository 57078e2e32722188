"""An examination: make the plan, check the nodes, start a few ranks, and combine the findings."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping

import msgspec

from windlass.backends.schedulers import scheduler_of_job
from windlass.base.settings import read_settings
from windlass.diagnose.doctor.health import Health, Level, Patient, failing_hosts, fold
from windlass.diagnose.doctor.nodes import check_nodes
from windlass.diagnose.doctor.plan_checks import check_plan
from windlass.diagnose.doctor.ranks import examine_ranks
from windlass.errors import MachineError
from windlass.model.finding import Finding, worst_severity
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.node.sys.text import listed
from windlass.plan.inputs import PlanningContext
from windlass.plan.plan import make_plan
from windlass.run.bad_nodes import remember_node
from windlass.run.context import gather_context
from windlass.run.folder import RunFolder, make_folder
from windlass.run.rendezvous import is_free, master_address, master_port, plan_hosts

Tell = Callable[[str], None]
"""Shows a progress message."""


def examine(request: Request, environ: Mapping[str, str], level: Level, tell: Tell) -> Health:
    """Examine the machine or the allocation for this request. Raises `UsageError` for an impossible request.

    Removes its files, unless the request names a run folder.
    """
    began = time.monotonic()
    settings = read_settings(environ)
    there = settings.runs_dir.exists()
    folder = make_folder(request.run_dir, settings.runs_dir, "doctor", state_dir=settings.state_dir)
    try:
        patient = admit(request, folder, environ)
        findings = findings_of(patient, level, tell)
    finally:
        if request.run_dir is None:
            shutil.rmtree(folder.path, ignore_errors=True)
            with contextlib.suppress(OSError):
                if not there:
                    folder.path.parent.rmdir()
    health = health_of(patient, findings, level, time.monotonic() - began)
    if level == "full":
        for host, reason in health.bad_nodes.items():
            remember_node(settings.state_dir, site=health.site, host=host, reason=reason)
    return health


def admit(request: Request, folder: RunFolder, environ: Mapping[str, str]) -> Patient:
    """Plan the request as all commands do. Outside of a job, only this node is examined."""
    settings = read_settings(environ)
    inside = scheduler_of_job(environ) is not None
    request, context = gather_context(request, settings, environ=environ, here=True if inside else None)
    job_plan = plan = _plan(request, context)
    login = plan.scheduler != "none" and context.allocation is None
    if login:
        alone = {"scheduler": "none", "launcher": "local", "nodes": 1, "hosts": None, "partition": None}
        here, context = gather_context(msgspec.structs.replace(request, **alone), settings, environ=environ, here=True)
        plan = _plan(here, context)
        # The catalog's node is a compute node.
        node = msgspec.structs.replace(plan.topology, devices=(), nics=())
        plan = msgspec.structs.replace(plan, topology=node)
    return Patient(
        request=request,
        plan=plan,
        job_plan=job_plan,
        context=context,
        folder=folder,
        environ=environ,
        hosts=plan_hosts(plan),
        login=login,
    )


def _plan(request: Request, context: PlanningContext) -> Plan:
    """Plan a request whose command is not run."""
    probe = msgspec.structs.replace(request, kind="command", command=("true",), name=request.name or "doctor")
    return make_plan(probe, context)[0]


def findings_of(patient: Patient, level: Level, tell: Tell) -> list[Finding]:
    """Run all checks of this level, the cheap ones first."""
    findings = check_plan(patient.job_plan, patient.request, patient.context.site, patient.environ)
    tell(f"asking {len(patient.hosts)} nodes" if len(patient.hosts) > 1 else "checking this node")
    if patient.login:
        findings.append(Finding("ranks", "skipped", "not inside a job: none was started"))
    meeting, trouble = (None, []) if patient.login else rendezvous(patient)
    findings += trouble
    findings += check_nodes(patient.plan, patient.context, patient.folder, patient.environ, patient.hosts, meeting)
    silent = [finding.subject for finding in findings if finding.kind == "answer"]
    if silent:  # its ranks would keep the others waiting
        findings.append(Finding("ranks", "skipped", f"not started: {listed(silent)} does not answer"))
    if patient.login or silent:
        return findings
    tell("starting ranks" if level == "quick" else "timing all-reduces")
    return findings + examine_ranks(patient, level)


def rendezvous(patient: Patient) -> tuple[tuple[str, int] | None, list[Finding]]:
    """Return the address and port that a run would choose, or the reason why it could not."""
    plan, context = patient.plan, patient.context
    free = is_free if context.on_node or context.allocation is None else lambda port: port not in context.taken_ports
    kind = "rendezvous"
    try:
        address = master_address(plan, patient.hosts, patient.environ)
        kind = "port"
        port = master_port(plan, plan.job_id, patient.folder.run_id, free)
    except MachineError as error:
        return None, [Finding(kind, "error", error.message, error.hint or "")]
    return (address, port), []


def health_of(patient: Patient, findings: list[Finding], level: Level, seconds: float) -> Health:
    folded = fold(findings)
    return Health(
        version=2,
        site=patient.context.site.name,
        nodes=len(patient.hosts),
        outside=patient.login,
        level=level,
        severity=worst_severity(folded),
        findings=folded,
        bad_nodes=dict(failing_hosts(findings, patient.hosts)),
        seconds=round(seconds, 2),
    )
