"""The quick checks before a run (`run --check`): which of its nodes must not be used, and why."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from windlass.diagnose.doctor.examine import rendezvous
from windlass.diagnose.doctor.health import Patient, failing_hosts, fold
from windlass.diagnose.doctor.nodes import check_nodes
from windlass.diagnose.doctor.plan_checks import check_plan
from windlass.diagnose.doctor.ranks import examine_ranks
from windlass.errors import MachineError
from windlass.model.finding import Finding
from windlass.run.bad_nodes import remember_node
from windlass.run.folder import make_folder
from windlass.run.planning import Run
from windlass.run.rendezvous import plan_hosts

FOLDER = "check"


def bad_nodes_of(run: Run) -> Mapping[str, str]:
    """Return the hosts that must not be used, among the hosts of the plan and the spare hosts.

    Each bad host is stored with its reason. Raises `MachineError` for a problem that another node would not solve.
    """
    used = plan_hosts(run.plan)
    allocation = run.context.allocation
    spare = tuple(host for host in (allocation.hosts if allocation else ()) if host not in used)
    hosts = (*used, *spare)
    folder = make_folder(str(run.folder.part(FOLDER)), run.folder.path, FOLDER, state_dir=run.settings.state_dir)
    patient = Patient(
        request=run.plan.request,
        plan=run.plan,
        job_plan=run.plan,
        context=run.context,
        folder=folder,
        environ=run.environ,
        hosts=hosts,
    )
    findings = check_plan(run.plan, run.plan.request, run.context.site, run.environ)
    meeting, trouble = rendezvous(patient)
    findings += trouble
    findings += check_nodes(run.plan, run.context, folder, run.environ, hosts, meeting)
    bad = dict(failing_hosts(findings, hosts))
    if not bad:
        findings += examine_ranks(patient, "quick")
        bad = dict(failing_hosts(findings, used))
    _tell(run, findings)
    for host, reason in bad.items():
        settings = run.settings
        remember_node(settings.state_dir, site=run.plan.site, host=host, reason=reason, run=str(run.folder.path))
    failed = [f for f in findings if f.severity == "error" and f.subject not in bad]
    if failed:
        raise MachineError(
            f"the check before the run failed: {failed[0].kind}: {failed[0].evidence}",
            hint=failed[0].advice or "`windlass doctor` shows details",
        )
    shutil.rmtree(folder.path, ignore_errors=True)
    return bad


def _tell(run: Run, findings: list[Finding]) -> None:
    for finding in fold(findings):
        if finding.severity == "error" or (finding.severity == "warning" and not run.quiet):
            run.view.note(f"windlass: check: {finding.severity}: {finding.line()}")
