"""Run node steps: a small task on each node of the ranks, run once or for the whole job.

Only this module starts node steps. The launcher's `node_step` hook defines how a task starts. This module writes the
host file and fills in placeholders. Every step that it waits for has a deadline.

It also asks questions: it runs a small program on each node and collects the answers.
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
    """Run the program once on every node of the step and wait for it.

    Raises `DeadlineError` with the output so far. With `check`, raises `CommandError` if the program fails on a node.
    `folder` is required if the step has a host file.
    """
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
    files: tuple[str, str],
    detached: bool = False,
) -> RunningStep:
    """Start the program on every node and return.

    `files` are two files of the folder, for the program's output and for the error output of the program and the
    launcher. Unless `detached`, the program ends when this process ends for any reason. Raises `MachineError` if the
    launcher cannot be started.
    """
    argv = (*_launch_argv(step, folder, environ), *program)
    holds = step.follows_stdin and not detached
    explained = os_errors(f"start {argv[0]}", hint="check that it is installed here; a module may be missing")
    out, log = map(folder.part, files)
    with _opened(out) as out_file, _opened(log) as log_file, explained:
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
    """A node step that was started. `stop` ends all of its processes."""

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

    def write(self, data: bytes) -> bool:
        """Write to the standard input of all tasks. Returns False if they do not follow it, or are gone."""
        with contextlib.suppress(OSError, ValueError):
            if self._child.stdin is not None:
                self._child.stdin.write(data)
                self._child.stdin.flush()
                return True
        return False

    def stop(self, patience_s: float) -> None:
        """Ask the tasks to end, wait, then kill them. Never raises."""
        child = self._child
        deadline = time.monotonic() + patience_s
        if child.stdin is not None:
            with contextlib.suppress(OSError):
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
    """Return the launcher's argv with all placeholders filled in, and write its host file."""
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
    entered = "\n".join(("{", *step.prologue, "} >&2", 'exec "$@"'))  # output of modules is not output of the step
    return ("/bin/bash", "-c", entered, "windlass", *argv)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


def broker_ranks(instance: tuple[str, ...], hosts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the broker of each host, by its index among all hosts of the instance.

    Raises `MachineError` for a host that is not in the instance.
    """
    known = {host: rank for rank, host in reversed(list(enumerate(instance)))}
    missing = [host for host in hosts if host not in known]
    if missing:
        raise MachineError(
            f"{missing[0]} has no broker in this Flux instance",
            hint="`flux getattr hostlist` lists the nodes that have one",
        )
    return tuple(known[host] for host in hosts)


ALONE_S = 8.0
_MAX_ALONE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A program of the node tree and its settings.

    The program writes with `node.sys.messages.node_writer` and ends with the message `done=True`. In addition to its
    settings it gets `place` (variables with its number in the step), `first` (the number of the first host of the step
    among all hosts) and `alone` (whether only some hosts are asked).
    """

    entry: str
    purpose: str
    deadline_s: float
    settings: Mapping[str, object] = field(default_factory=dict)
    file: str = ""
    """A zip file on the node that contains the code. Without it, the command line contains the code."""
    alone: bool = True
    """Whether nodes that did not answer together are asked one by one. One dead node can silence a whole step."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of the nodes."""

    answered: frozenset[str]
    """Hosts whose program finished."""
    messages: tuple[dict[str, Any], ...]
    """Each message contains its `node` and `host`."""
    refused: frozenset[str] = frozenset()
    """Hosts on which the launcher reports that it cannot start a task."""
    complaint: str = ""
    """The last line that a program or the launcher wrote to standard error, or the reason why no task started."""


def ask(
    plan: Plan,
    folder: RunFolder,
    environ: Mapping[str, str],
    question: Question,
    hosts: tuple[str, ...] | None = None,
) -> Answers:
    """Ask these hosts (None: the hosts of the plan). Never raises.

    Answers that arrive before the deadline count.
    """
    if hosts is None:
        hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    said = _ask(plan, folder, environ, question, hosts, range(len(hosts)))
    missing = [number for number, host in enumerate(hosts) if host not in said.answered | said.refused]
    if not missing or len(hosts) < 2 or len(missing) > _MAX_ALONE or not question.alone:
        return said
    messages, answered = list(said.messages), set(said.answered)
    with ThreadPoolExecutor(len(missing)) as pool:  # in parallel, because each may take until its deadline
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
    """Ask the nodes of one step. Never raises.

    `first` is the number of the step's first host if only some hosts are asked. `complaint` is all output on standard
    error.
    """
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
    """Return the message with the host name of the plan.

    The host is found by its number, because a node may use another name for itself.
    """
    node = message.get("node")
    return {**message, "host": hosts[node]} if isinstance(node, int) and 0 <= node < len(hosts) else message
