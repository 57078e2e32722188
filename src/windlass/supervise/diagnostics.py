"""Node diagnostics: one small task per node beside the ranks, with a deadline, that says what is to be seen there.

A node that does not answer while the others do is itself the finding.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.agents.command import script_argv
from windlass.agents.node import diagnostics
from windlass.errors import CommandError, WindlassError
from windlass.launchers import get_launcher
from windlass.model.plan import Plan
from windlass.notation.hostlist import expand_hostlist
from windlass.plan.node_step import plan_node_step
from windlass.procs import marks
from windlass.run.folder import RunFolder
from windlass.run.node_step import run_node_step

_DEADLINE_S = 30.0
_ALONE_S = 10.0
_MAX_ALONE = 16


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What node diagnostics said."""

    answered: frozenset[str]
    lines: tuple[dict[str, Any], ...]
    refused: frozenset[str] = frozenset()
    """Hosts that the launcher itself says it cannot start anything on."""


def diagnose_nodes(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], what: str, *words: str, deadline_s: float = _DEADLINE_S
) -> NodeReport:
    """Run them everywhere. Nodes that did not answer together are asked alone: one dead node can silence a whole
    step. Never raises; what was said before a deadline counts."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    report = _diagnose(plan, folder, environ, hosts, (what, str(folder.path)), words, deadline_s)
    missing = [host for host in hosts if host not in report.answered | report.refused]
    if not missing or len(hosts) < 2 or len(missing) > _MAX_ALONE:
        return report
    lines, answered = list(report.lines), set(report.answered)
    for host in missing:
        alone = _diagnose(plan, folder, environ, (host,), (what, str(folder.path)), words, _ALONE_S)
        lines += alone.lines
        answered |= alone.answered
    return NodeReport(answered=frozenset(answered), lines=tuple(lines), refused=report.refused)


def lost_hosts(plan: Plan, report: NodeReport) -> tuple[str, ...]:
    """Hosts of the plan that did not answer, where others did."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    if len(hosts) < 2 or not report.answered:
        return ()
    return tuple(host for host in hosts if host not in report.answered)


def _diagnose(
    plan: Plan,
    folder: RunFolder,
    environ: Mapping[str, str],
    hosts: tuple[str, ...],
    first: tuple[str, str],
    rest: tuple[str, ...],
    deadline_s: float,
) -> NodeReport:
    launcher = get_launcher(plan.launcher)
    step = plan_node_step(plan, "diagnostics", hosts=hosts, host_file="diagnostics-hosts")
    source, shared = Path(diagnostics.__file__).read_text(), Path(marks.__file__).read_text()
    modules = ((marks.__name__, shared),)
    program = script_argv(source, sys.executable, *first, ",".join(step.place), *rest, modules=modules)
    try:
        done = run_node_step(step, program, environ=environ, timeout_s=deadline_s, folder=folder, check=False)
        said, complaints = done.stdout, done.stderr.splitlines()
    except WindlassError as error:
        said, complaints = (error.output if isinstance(error, CommandError) else ""), []
    lines = tuple(_named(line, hosts) for line in _json_lines(said))
    answered = frozenset(line["host"] for line in lines if line.get("done"))
    found = (launcher.parse_failure([line.strip()], 1) for line in complaints)
    refused = {failure.host for failure in found if failure is not None and failure.rank is None}
    return NodeReport(answered=answered, lines=lines, refused=frozenset(h for h in hosts if h in refused) - answered)


def _named(line: dict[str, Any], hosts: tuple[str, ...]) -> dict[str, Any]:
    """The line with the host as the plan calls it: by its number, for nodes may call themselves otherwise."""
    node = line.get("node")
    return {**line, "host": hosts[node]} if isinstance(node, int) and node < len(hosts) else line


def _json_lines(text: str) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line[line.index("{") :])
            if isinstance(found, dict):
                yield found
