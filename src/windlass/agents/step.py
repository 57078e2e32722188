"""Node steps: the one place that runs a small task on each node beside the ranks, to its end or as long as the job.

How a launcher starts such a task is its `node_step` hook; here the host file is written, placeholders are filled in,
and every step that is waited for has a deadline.

Also questions to all nodes: one small program on each, and its answers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from windlass.agents.ship import program_argv
from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import NodeStep
from windlass.base.notation.counts import format_cpulist
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.procs.command import Done, pdeathsig, run_command
from windlass.errors import CommandError, MachineError, WindlassError, os_errors
from windlass.model.origin import argv_of
from windlass.model.plan import Plan
from windlass.node.sys.atomic import open_append
from windlass.node.sys.messages import read_messages
from windlass.plan.agents import plan_node_step
from windlass.run.folder import RunFolder

_LOOKUP_S = 20.0


def run_node_step(
    step: NodeStep,
    program: tuple[str, ...],
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    folder: RunFolder | None = None,
    check: bool = True,
) -> Done:
    """Run the program on every node of the step, to its end. Raises `DeadlineError` with what was said until then,
    and, with `check`, `CommandError` where it fails on a node. `folder` is needed where the step has a host file."""
    argv = (*_launch_argv(step, folder, environ), *program)
    return run_command(
        argv, timeout_s=timeout_s, env=_step_environ(step, environ), check=check, stop_with=signal.SIGTERM
    )


def start_node_step(
    step: NodeStep,
    program: tuple[str, ...],
    *,
    environ: Mapping[str, str],
    folder: RunFolder,
    out: str,
    log: str,
    detached: bool = False,
) -> RunningStep:
    """Start the program on every node and leave it running; `out` and `log` are files of the folder for its output and
    for what it and the launcher complain about. Unless `detached`, it ends when this process does, however that ends.
    Raises `MachineError` where the launcher cannot be started."""
    argv = (*_launch_argv(step, folder, environ), *program)
    holds = step.follows_stdin and not detached
    explained = os_errors(f"start {argv[0]}", hint="is it installed here, and is a module missing?")
    with _opened(folder.part(out)) as out_file, _opened(folder.part(log)) as log_file, explained:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if holds else subprocess.DEVNULL,
            stdout=out_file,
            stderr=log_file,
            env=_step_environ(step, environ),
            cwd="/",
            start_new_session=True,
            preexec_fn=None if holds or detached else pdeathsig(step.stop_signal),  # noqa: PLW1509  one system call
        )
    return RunningStep(child, argv, step.stop_signal)


class RunningStep:
    """A node step that was started; `stop` leaves nothing of it."""

    def __init__(self, child: subprocess.Popen[bytes], argv: tuple[str, ...], stop_signal: signal.Signals) -> None:
        self._child = child
        self._stop_signal = stop_signal
        self.argv = argv

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        """Exit code of the launcher, None while it runs."""
        return self._child.poll()

    def stop(self, patience_s: float) -> None:
        """Ask the tasks to end, wait, insist. Never raises."""
        child = self._child
        deadline = time.monotonic() + patience_s
        if child.stdin is not None:
            child.stdin.close()
        else:
            self._signal(self._stop_signal)
        for sig in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, deadline - time.monotonic()))
            if child.returncode is not None:
                break
            self._signal(sig)
            deadline = time.monotonic() + min(10.0, patience_s)

    def _signal(self, sig: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, sig)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    with open_append(path, fresh=True) as file:
        yield file.fileno()


def _step_environ(step: NodeStep, environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, **dict(step.environment)}


def _launch_argv(step: NodeStep, folder: RunFolder | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The launcher's command line with every placeholder filled in; the host file that it names is written."""
    values: dict[str, str] = {}
    if folder is not None:
        values["{run_dir}"] = str(folder.path)
    if step.host_file is not None:
        assert folder is not None, "a host file needs a run folder"
        folder.write(Path(step.host_file).name, step.host_file_text)
    if step.lookup_argv:
        answer = run_command(step.lookup_argv, timeout_s=_LOOKUP_S, env=environ).stdout.strip()
        brokers = broker_ranks(expand_hostlist(answer), step.lookup_hosts)
        values["{broker_ranks}"] = format_cpulist(brokers)
        values["{broker_order}"] = ",".join(str(rank) for rank in brokers)
    argv = tuple(_filled(word, values) for word in argv_of(step.arguments))
    if not argv or not step.prologue:
        return argv
    entered = "\n".join(("{", *step.prologue, "} >&2", 'exec "$@"'))  # what modules say is none of the step's output
    return ("/bin/bash", "-c", entered, "windlass", *argv)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


def broker_ranks(instance: tuple[str, ...], hosts: tuple[str, ...]) -> tuple[int, ...]:
    """The broker of each host, by its place among all hosts of the instance. Raises `MachineError` for a stranger."""
    known = {host: rank for rank, host in reversed(list(enumerate(instance)))}
    missing = [host for host in hosts if host not in known]
    if missing:
        raise MachineError(
            f"{missing[0]} has no broker in this Flux instance", hint="`flux getattr hostlist` lists those that have"
        )
    return tuple(known[host] for host in hosts)


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
