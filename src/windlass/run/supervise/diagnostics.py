"""Node diagnostics: one short program per node next to the ranks, which reports what it finds there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from windlass.agents.ask import Answers, Question, ask
from windlass.base.notation.hostlist import expand_hostlist
from windlass.model.plan import Plan
from windlass.run.folder import RunFolder

_DEADLINE_S = 30.0
_ANSWER_S = 10.0
_MAX_ASKED = 4
"""More nodes than these do not fall silent one by one: then the first ones stand for all."""

NodeReport = Answers


def diagnose_nodes(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], what: Literal["stacks", "after"], **settings: object
) -> NodeReport:
    """Run `windlass.node.agent.diagnostics` on every node of the plan. Never raises; what was said before the deadline
    counts."""
    question = Question(
        entry="windlass.node.agent.diagnostics:main",
        purpose="diagnostics",
        deadline_s=_DEADLINE_S,
        settings={"what": what, "run_dir": str(folder.path), **settings},
    )
    return ask(plan, folder, environ, question)


def nodes_that_answer(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], hosts: tuple[str, ...]
) -> frozenset[str]:
    """Those of these hosts on which a program can be started within a few seconds. Never raises."""
    question = Question(entry="windlass.node.agent.diagnostics:alive", purpose="alive", deadline_s=_ANSWER_S)
    found: set[str] = set()
    for host in hosts[:_MAX_ASKED]:
        asked = ask(plan, folder, environ, question, (host,))
        found |= asked.answered | asked.refused  # one that refuses a program is there
    return frozenset(found)


def lost_hosts(plan: Plan, report: NodeReport) -> tuple[str, ...]:
    """Hosts of the plan that did not answer, where others did."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    if len(hosts) < 2 or not report.answered:
        return ()
    return tuple(host for host in hosts if host not in report.answered)
