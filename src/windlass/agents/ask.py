"""Questions to every node at once: one short program per node, with a deadline, and what each node answered.

A node that does not answer while the others do is itself the finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from windlass.agents.ship import program_argv
from windlass.agents.step import run_node_step
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import NodeStep
from windlass.base.notation.hostlist import expand_hostlist
from windlass.errors import CommandError, WindlassError
from windlass.model.plan import Plan
from windlass.node.sys.messages import read_messages
from windlass.plan.agents import plan_node_step
from windlass.run.folder import RunFolder

ALONE_S = 8.0
_MAX_ALONE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A program of the node tree, and what it is told. It writes with `node.sys.messages.node_writer`, and ends with
    the message `done=True`. Beside its settings it gets `place` (variables with its number in the step), `first`
    (the number of the first host of the step among all hosts) and `alone` (whether only some hosts are asked)."""

    entry: str
    purpose: str
    deadline_s: float
    settings: Mapping[str, object] = field(default_factory=dict)
    file: str = ""
    """A zip on the node that has the code; without it the command line carries the code."""
    alone: bool = True
    """Whether nodes that did not answer together are asked one by one: one dead node can silence a whole step."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes said."""

    answered: frozenset[str]
    """Hosts whose program came to its end."""
    messages: tuple[dict[str, Any], ...]
    """Each with its `node` and `host`."""
    refused: frozenset[str] = frozenset()
    """Hosts that the launcher itself says it cannot start anything on."""
    complaint: str = ""
    """The last line that a program or the launcher wrote to standard error, or why nothing was started."""


def ask(
    plan: Plan,
    folder: RunFolder,
    environ: Mapping[str, str],
    question: Question,
    hosts: tuple[str, ...] | None = None,
) -> Answers:
    """Ask these hosts (None: those of the plan). Never raises; what was said before the deadline counts."""
    if hosts is None:
        hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    said = _ask(plan, folder, environ, question, hosts, range(len(hosts)))
    missing = [number for number, host in enumerate(hosts) if host not in said.answered | said.refused]
    if not missing or len(hosts) < 2 or len(missing) > _MAX_ALONE or not question.alone:
        return said
    messages, answered = list(said.messages), set(said.answered)
    with ThreadPoolExecutor(len(missing)) as pool:  # at once: each may take until its deadline
        ranges = [range(number, number + 1) for number in missing]
        again = list(pool.map(lambda one: _ask(plan, folder, environ, question, hosts, one), ranges))
    for alone in again:
        messages += alone.messages
        answered |= alone.answered
    return msgspec.structs.replace(said, answered=frozenset(answered), messages=tuple(messages))


def _ask(
    plan: Plan,
    folder: RunFolder,
    environ: Mapping[str, str],
    question: Question,
    hosts: tuple[str, ...],
    numbers: range,
) -> Answers:
    asked = hosts[numbers.start : numbers.stop]
    try:
        step = plan_node_step(plan, question.purpose, hosts=asked, host_file=f"{question.purpose}-hosts{numbers.start}")
    except WindlassError as error:
        return Answers(answered=frozenset(), messages=(), complaint=error.message)
    first = numbers.start if len(asked) < len(hosts) else None
    answers = ask_step(step, question, environ=environ, folder=folder, first=first)
    messages = tuple(_named(message, hosts) for message in answers.messages)
    answered = frozenset(message["host"] for message in messages if message.get("done"))
    found = (get_launcher(plan.launcher).parse_failure([line.strip()], 1) for line in answers.complaint.splitlines())
    refused = {failure.host for failure in found if failure is not None and failure.rank is None}
    return Answers(
        answered=answered,
        messages=messages,
        refused=frozenset(host for host in asked if host in refused) - answered,
        complaint=(answers.complaint.strip().splitlines() or [""])[-1],
    )


def ask_step(
    step: NodeStep,
    question: Question,
    *,
    environ: Mapping[str, str],
    folder: RunFolder | None = None,
    first: int | None = None,
) -> Answers:
    """Ask the nodes of one step. `first`: the number of its first host, where only some are asked. `complaint` is all
    that was written to standard error. Never raises."""
    deadline_s = question.deadline_s if first is None else min(ALONE_S, question.deadline_s)
    told = {**question.settings, "place": step.place, "first": first or 0, "alone": first is not None}
    argv = program_argv(question.entry, told, file=question.file)
    try:
        done = run_node_step(step, argv, environ=environ, timeout_s=deadline_s, folder=folder, check=False)
        said, complaint = done.stdout, done.stderr
    except WindlassError as error:
        said, complaint = (error.output if isinstance(error, CommandError) else ""), error.message
    messages = tuple(read_messages(said.splitlines()))
    answered = frozenset(str(message.get("host", "")) for message in messages if message.get("done"))
    failed = next((message["failed"] for message in messages if "failed" in message), complaint)
    return Answers(answered=answered, messages=messages, complaint=failed)


def _named(message: dict[str, Any], hosts: tuple[str, ...]) -> dict[str, Any]:
    """The message with the host as the plan calls it: by its number, for nodes may call themselves otherwise."""
    node = message.get("node")
    return {**message, "host": hosts[node]} if isinstance(node, int) and 0 <= node < len(hosts) else message
