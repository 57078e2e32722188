"""Node steps: the one place that runs a small task on each node beside the ranks, to its end or as long as the job.

How a launcher starts such a task is its `node_step` hook; here the host file is written, placeholders are filled in,
and every step that is waited for has a deadline.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from windlass.backends.launchers.base import NodeStep
from windlass.base.notation.cpulist import format_cpulist
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.procs.command import Done, pdeathsig, run_command
from windlass.errors import MachineError, os_errors
from windlass.model.origin import argv_of
from windlass.node.sys.atomic import open_append
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
