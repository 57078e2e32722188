"""Node diagnostics: one small task per node beside the ranks, with a deadline, that says what is to be seen there."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from windlass.agents.command import script_argv
from windlass.base.notation.hostlist import expand_hostlist
from windlass.model.plan import Plan
from windlass.node.agent import diagnostics
from windlass.node.sys import marks
from windlass.node.sys.reading import read_text
from windlass.run.folder import RunFolder
from windlass.run.node_answers import NodeAnswers, ask_nodes

_DEADLINE_S = 30.0
_ANSWER_S = 10.0
_MAX_ASKED = 4
"""More nodes than these do not fall silent one by one: then the first ones stand for all."""

NodeReport = NodeAnswers


def diagnose_nodes(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], what: str, *words: str, deadline_s: float = _DEADLINE_S
) -> NodeReport:
    """Run them on every node of the plan. Never raises; what was said before a deadline counts."""
    source, shared = read_text(diagnostics.__file__, follow=True), read_text(marks.__file__, follow=True)
    modules = ((marks.__name__, shared),)

    def program(place: tuple[str, ...], _: tuple[str, ...]) -> tuple[str, ...]:
        names = ",".join(place)
        return script_argv(source, sys.executable, what, str(folder.path), names, *words, modules=modules)

    return ask_nodes(plan, folder, environ, program, purpose="diagnostics", deadline_s=deadline_s)


def nodes_that_answer(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], hosts: tuple[str, ...]
) -> frozenset[str]:
    """Those of these hosts on which a program can be started within a few seconds. Never raises."""

    def program(*_: tuple[str, ...]) -> tuple[str, ...]:
        return ("/bin/echo", '{"node":0,"done":true}')

    found: set[str] = set()
    for host in hosts[:_MAX_ASKED]:
        asked = ask_nodes(plan, folder, environ, program, purpose="alive", deadline_s=_ANSWER_S, hosts=(host,))
        found |= asked.answered | asked.refused  # one that refuses a program is there
    return frozenset(found)


def lost_hosts(plan: Plan, report: NodeReport) -> tuple[str, ...]:
    """Hosts of the plan that did not answer, where others did."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    if len(hosts) < 2 or not report.answered:
        return ()
    return tuple(host for host in hosts if host not in report.answered)
