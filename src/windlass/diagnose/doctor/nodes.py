"""Run the node checks on all nodes in parallel, with the node step of the plan's launcher."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from windlass.agents.step import Question, ask
from windlass.diagnose.doctor.health import odd_values
from windlass.model.finding import Finding, decode_findings
from windlass.model.plan import Plan
from windlass.node.sys.text import binary_size
from windlass.plan.inputs import PlanningContext
from windlass.run.folder import RunFolder

_CHECK_S = 6.0
_MEETING_S = 4.0
_STEP_S = 11.0
_PER_NODE_S = 0.02
_MAX_STEP_S = 120.0
_SAME = 0.1
"""Nodes of one type differ by less than this in the memory that the kernel reports."""
INTERFACE_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "RCCL_SOCKET_IFNAME"),
    *("FI_TCP_IFACE", "UCX_NET_DEVICES"),
)


def node_spec(
    plan: Plan, context: PlanningContext, hosts: tuple[str, ...], meeting: tuple[str, int] | None
) -> dict[str, Any]:
    """Return the values that the nodes compare themselves with.

    `meeting`: address and port of the ranks' rendezvous.
    """
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
    """Run the checks on these hosts. A node that does not respond is a finding. Never raises."""
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
            with contextlib.suppress(msgspec.ValidationError):
                found[str(message.get("host", ""))] = decode_findings(message["findings"])
    nodes = {host: [_silent(host)] if named is None else named for host, named in found.items()}
    if any(one.kind in {"answer", "port"} and one.severity == "error" for one in nodes[hosts[0]]):
        # The other nodes cannot reach the first node, which is not their fault.
        nodes = {host: [one for one in named if one.kind != "rendezvous"] for host, named in nodes.items()}
    odd = odd_hardware(nodes)
    return [
        msgspec.structs.replace(odd.get(host, one) if one.kind == "hardware" else one, subject=host * (len(hosts) > 1))
        for host, named in nodes.items()
        for one in named
    ]


def odd_hardware(nodes: Mapping[str, list[Finding]]) -> dict[str, Finding]:
    """Return the nodes whose CPUs, memory, links or driver differ from those of most others."""
    said: dict[str, dict[str, Any]] = {}
    for host, named in nodes.items():
        facts = {one.kind: one.facts for one in named}
        if "memory" in facts.get("hardware", {}):
            said[host] = {**facts["hardware"], "driver": facts.get("devices", {}).get("driver") or None}
    sizes = sorted(values["memory"] for values in said.values())
    for values in said.values():
        usual = sizes[len(sizes) // 2]
        values["memory"] = binary_size(usual if abs(values["memory"] - usual) < _SAME * usual else values["memory"])
    remedy = "leave the node out, or request nodes of one type (--constraint): the slowest node determines the speed"
    return {
        host: Finding("hardware", "warning", "; ".join(odd.values()), remedy) for host, odd in odd_values(said).items()
    }


def _silent(host: str) -> Finding:
    return Finding(
        "answer",
        "error",
        "the node does not respond, or no program can start on it",
        "use another node; `sinfo -R` or `pbsnodes` may show the reason",
        subject=host,
    )
