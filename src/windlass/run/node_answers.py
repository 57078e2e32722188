"""Questions to every node at once: one short program per node, with a deadline, and what each node said to it.

A node that does not answer while the others do is itself the finding.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.base.notation.hostlist import expand_hostlist
from windlass.errors import CommandError, WindlassError
from windlass.model.plan import Plan
from windlass.plan.node_step import plan_node_step
from windlass.run.folder import RunFolder
from windlass.run.node_step import run_node_step

ALONE_S = 10.0
_MAX_ALONE = 16

Program = Callable[[tuple[str, ...], tuple[str, ...]], tuple[str, ...]]
"""The argv of the program, by the variables in which a task finds its node's number, and the hosts that are asked now.
Lines should be shorter than 1,024 bytes: Slurm hands output on in pieces of that size, and mixes those of two nodes."""


class NodeAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes said: objects of JSON, one per line, each with its `host`."""

    answered: frozenset[str]
    lines: tuple[dict[str, Any], ...]
    refused: frozenset[str] = frozenset()
    """Hosts that the launcher itself says it cannot start anything on."""


def ask_nodes(
    plan: Plan,
    folder: RunFolder,
    environ: Mapping[str, str],
    program: Program,
    *,
    purpose: str,
    deadline_s: float,
    hosts: tuple[str, ...] | None = None,
) -> NodeAnswers:
    """Run it on these hosts (None: on those of the plan). Nodes that did not answer together are asked alone: one dead
    node can silence a whole step. A node has answered when it has said `"done": true`. Never raises; what was said
    before a deadline counts."""
    if hosts is None:
        hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    said = _ask(plan, folder, environ, program, purpose, hosts, deadline_s)
    missing = [host for host in hosts if host not in said.answered | said.refused]
    if not missing or len(hosts) < 2 or len(missing) > _MAX_ALONE:
        return said
    lines, answered = list(said.lines), set(said.answered)
    for host in missing:
        alone = _ask(plan, folder, environ, program, purpose, (host,), min(ALONE_S, deadline_s))
        lines += alone.lines
        answered |= alone.answered
    return NodeAnswers(answered=frozenset(answered), lines=tuple(lines), refused=said.refused)


def _ask(
    plan: Plan,
    folder: RunFolder,
    environ: Mapping[str, str],
    program: Program,
    purpose: str,
    hosts: tuple[str, ...],
    deadline_s: float,
) -> NodeAnswers:
    launcher = get_launcher(plan.launcher)
    try:
        step = plan_node_step(plan, purpose, hosts=hosts, host_file=f"{purpose}-hosts")
        done = run_node_step(
            step, program(step.place, hosts), environ=environ, timeout_s=deadline_s, folder=folder, check=False
        )
        said, complaints = done.stdout, done.stderr.splitlines()
    except WindlassError as error:
        said, complaints = (error.output if isinstance(error, CommandError) else ""), []
    lines = tuple(_named(line, hosts) for line in json_lines(said))
    answered = frozenset(line["host"] for line in lines if line.get("done"))
    found = (launcher.parse_failure([line.strip()], 1) for line in complaints)
    refused = {failure.host for failure in found if failure is not None and failure.rank is None}
    return NodeAnswers(answered=answered, lines=lines, refused=frozenset(h for h in hosts if h in refused) - answered)


def _named(line: dict[str, Any], hosts: tuple[str, ...]) -> dict[str, Any]:
    """The line with the host as the plan calls it: by its number, for nodes may call themselves otherwise."""
    node = line.get("node")
    return {**line, "host": hosts[node]} if isinstance(node, int) and node < len(hosts) else line


def json_lines(text: str) -> Iterable[dict[str, Any]]:
    """The objects that stand on lines of their own, whatever a launcher puts in front of them."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line[line.index("{") :])
            if isinstance(found, dict):
                yield found
