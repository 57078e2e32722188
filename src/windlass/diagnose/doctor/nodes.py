"""The checks of the nodes, started on all of them at once by the node step of the plan's launcher."""

from __future__ import annotations

import base64
import inspect
import json
import secrets
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import windlass.node.checks
import windlass.node.sampler
from windlass.agents.command import script_argv
from windlass.model.finding import Finding, decode_findings
from windlass.model.plan import Plan
from windlass.node.sys import parts, text
from windlass.node.sys.reading import read_text
from windlass.plan.inputs import PlanningContext
from windlass.run.folder import RunFolder
from windlass.run.node_answers import ask_nodes

_NODE = Path(windlass.node.checks.__path__[0])
_PACKAGE = "windlass.node.checks"
_READERS = Path(windlass.node.sampler.__path__[0])
_READERS_PACKAGE = "windlass.node.sampler"
_READER_NAMES = ("amd", "intel", "nvidia", "readings")
"""Modules that read the vendors' tools, for samplers and checks alike."""
_CHECK_S = 6.0
_MEETING_S = 4.0
_STEP_S = 30.0
_PER_NODE_S = 0.01
_MAX_STEP_S = 120.0
INTERFACE_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "RCCL_SOCKET_IFNAME"),
    *("FI_TCP_IFACE", "UCX_NET_DEVICES"),
)

# Every module from its text, each executed when it is first imported; nothing is read from a shared file system.
_BOOT = """\
import base64, importlib.abc, importlib.util, json, sys, zlib
texts = json.loads(zlib.decompress(base64.b64decode({packed!r})))
class Carried(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in texts:
            return importlib.util.spec_from_loader(name, self, is_package=not texts[name])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(texts[module.__name__], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Carried())
from {package}.{module} import main
sys.exit(main(sys.argv[1:]))
"""


def carried_program(module: str) -> str:
    """A program of the node side as one text: `main(argv)` of a module, and those that it imports."""
    texts = {
        f"{_PACKAGE}.{file.stem}": read_text(file, follow=True)
        for file in _NODE.glob("*.py")
        if file.stem != "__init__"
    }
    texts |= {f"{_READERS_PACKAGE}.{name}": read_text(_READERS / f"{name}.py", follow=True) for name in _READER_NAMES}
    texts |= {module.__name__: inspect.getsource(module) for module in (parts, text)}
    for package in (_PACKAGE, _READERS_PACKAGE, "windlass.node.sys"):
        texts |= dict.fromkeys((package, package.rpartition(".")[0], "windlass"), "")
    packed = base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode()
    return _BOOT.format(packed=packed, package=_PACKAGE, module=module)


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
        "first": 0,
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
    spec = node_spec(plan, context, hosts, meeting)
    source = carried_program("main")
    order = {host: index for index, host in enumerate(hosts)}

    def program(place: tuple[str, ...], asked: tuple[str, ...]) -> tuple[str, ...]:
        alone = {"first": order[asked[0]], "meeting": None} if len(asked) < len(hosts) else {}
        told = json.dumps({**spec, **alone}, separators=(",", ":"))
        return script_argv(source, sys.executable, told, ",".join(place))

    deadline_s = min(_STEP_S + _PER_NODE_S * len(hosts), _MAX_STEP_S)
    answers = ask_nodes(plan, folder, environ, program, purpose="doctor", deadline_s=deadline_s, hosts=hosts)
    parts: dict[str, list[Mapping[str, Any]]] = {host: [] for host in hosts}
    for line in answers.lines:
        parts.setdefault(str(line.get("host", "")), []).append(line)
    findings: list[Finding] = []
    for host, lines in parts.items():
        found = unpacked(lines)
        named = [_silent(host)] if found is None else found
        findings += [msgspec.structs.replace(one, subject=host if len(hosts) > 1 else "") for one in named]
    return findings


def unpacked(lines: Sequence[Mapping[str, Any]]) -> list[Finding] | None:
    """The findings in what one node said, in the parts of `node.main.lines_of`; None where a part is missing."""
    try:
        return decode_findings(parts.join_parts(lines))
    except (ValueError, msgspec.ValidationError):
        return None


def _silent(host: str) -> Finding:
    return Finding(
        "answer",
        "error",
        "the node does not answer, or nothing can be started on it",
        "use another node; `sinfo -R` or `pbsnodes` may say why",
        subject=host,
    )
