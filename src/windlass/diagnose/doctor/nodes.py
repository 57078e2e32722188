"""The checks of the nodes, started on all of them at once by the node step of the plan's launcher."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from windlass.agents.ask import Question, ask
from windlass.model.finding import Finding, decode_findings
from windlass.model.plan import Plan
from windlass.plan.inputs import PlanningContext
from windlass.run.folder import RunFolder

_CHECK_S = 6.0
_MEETING_S = 4.0
_STEP_S = 30.0
_PER_NODE_S = 0.01
_MAX_STEP_S = 120.0
INTERFACE_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "RCCL_SOCKET_IFNAME"),
    *("FI_TCP_IFACE", "UCX_NET_DEVICES"),
)


def node_spec(
    plan: Plan, context: PlanningContext, hosts: tuple[str, ...], meeting: tuple[str, int] | None
) -> dict[str, Any]:
    """What the nodes are told to compare themselves with. `meeting`: address and port of the ranks' rendezvous."""
    devices = plan.topology.devices
    expected: dict[str, Any] = {}
    if devices and plan.request.gpus_per_node != 0:
        expected = {
            "vendor": devices[0].vendor,
            "count": len(devices),
            "cards": len({device.card for device in devices}),
            "memory_bytes": min(device.memory_bytes for device in devices),
        }
    named = {setting.name: setting.value for setting in plan.environment if setting.value}
    site = context.site.file
    return {
        "nodes": len(hosts) or 1,
        "seconds": _CHECK_S,
        "devices": expected,
        "nics": [nic.name for nic in plan.topology.nics] if site.node.nics else [],
        "interfaces": [(name, named[name]) for name in INTERFACE_VARIABLES if named.get(name)],
        "folders": list(dict.fromkeys((plan.cache_root, "/tmp", "/dev/shm"))),
        "job": plan.job_id or "",
        "meeting": meeting
        and {"address": meeting[0], "port": meeting[1], "word": secrets.token_hex(8), "seconds": _MEETING_S},
    }


def check_nodes(
    plan: Plan,
    context: PlanningContext,
    folder: RunFolder,
    environ: Mapping[str, str],
    hosts: tuple[str, ...],
    meeting: tuple[str, int] | None,
) -> list[Finding]:
    """Run them on these hosts. A node that does not answer is a finding. Never raises."""
    question = Question(
        entry="windlass.node.checks.main:main",
        purpose="doctor",
        deadline_s=min(_STEP_S + _PER_NODE_S * len(hosts), _MAX_STEP_S),
        settings=node_spec(plan, context, hosts, meeting),
    )
    answers = ask(plan, folder, environ, question, hosts)
    found: dict[str, list[Finding] | None] = dict.fromkeys(hosts)
    for message in answers.messages:
        if "findings" in message:
            found[str(message.get("host", ""))] = decoded(message["findings"])
    findings: list[Finding] = []
    for host, named in found.items():
        shown = [_silent(host)] if named is None else named
        findings += [msgspec.structs.replace(one, subject=host if len(hosts) > 1 else "") for one in shown]
    return findings


def decoded(findings: object) -> list[Finding] | None:
    """The findings of one node; None where they are none."""
    try:
        return decode_findings(findings)
    except msgspec.ValidationError:
        return None


def _silent(host: str) -> Finding:
    return Finding(
        "answer",
        "error",
        "the node does not answer, or nothing can be started on it",
        "use another node; `sinfo -R` or `pbsnodes` may say why",
        subject=host,
    )
