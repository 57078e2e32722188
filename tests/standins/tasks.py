"""Runs the ranks of a stand-in launcher: real processes on pretended hosts, with labelled output and a common end.

A pretended host is a name of its own that all the others can look up and mounts of its own (a UTS and a mount namespace
with an /etc/hosts, held by `sites.Holder`, where the user may make them) and nothing more: what one task mounts, every
other task of that host sees. Every rank has its own process group; when the launcher ends, however it ends, no rank
outlives it. Its standard input has ended before it began, as under the real launchers, which give only
rank 0 what they read: a socket whose other end is closed, so that `poll` tells of a hang-up at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LONGEST_RUN_S = 240.0
"""A stand-in never runs longer than this, whatever its ranks do."""
_NAMESPACES = ("uts", "mnt")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """One rank and where it runs."""

    rank: int
    local_rank: int
    node_rank: int
    host: str
    env: Mapping[str, str]
    cpus: frozenset[int] = frozenset()


_HELD_BACK: list[bool] = []


def hold_back_output(held: bool) -> None:
    """Standard output leaves in blocks and at the end, as from a C program whose output is no terminal."""
    _HELD_BACK[:] = [True] if held else []


@dataclass
class Lines:
    """Lines on their way to the launcher's output. With `late_s` a line arrives that much later, and what has not
    arrived when a rank is forgotten never does."""

    late_s: float = 0.0
    end_lines: bool = True
    """A last line without its end gets one; else it is glued to what comes next."""
    waiting: list[tuple[float, int, object, bytes]] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def arrive(self, *, all_of_them: bool = False) -> None:
        with self.lock:
            now = time.monotonic()
            while self.waiting and (all_of_them or self.waiting[0][0] + self.late_s <= now):
                _, rank, target, line = self.waiting.pop(0)
                if rank not in self.forgotten:
                    target.write(line)  # type: ignore[attr-defined]
                    if target is not sys.stdout.buffer or not _HELD_BACK:
                        target.flush()  # type: ignore[attr-defined]

    def pump(self, rank: int, source: object, target: object, prefix: bytes, whole_lines: bool) -> None:
        pieces = source if whole_lines else iter(lambda: source.read1(65536), b"")  # type: ignore[attr-defined]
        for line in pieces:  # type: ignore[attr-defined]
            whole = prefix + line + (b"\n" if self.end_lines and not line.endswith(b"\n") else b"")
            with self.lock:
                self.waiting.append((time.monotonic(), rank, target, whole))
            if not self.late_s:
                self.arrive()


@dataclass
class Running:
    """Ranks that were started, in the order in which they ended."""

    children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(default_factory=list)
    """Rank and its return code, negative for a signal."""
    stopped: bool = False
    """Somebody asked the launcher to end."""
    lines: Lines = field(default_factory=Lines)

    def kill(self, number: int) -> None:
        done = {rank for rank, _ in self.ended}
        for rank, child in self.children.items():
            if rank not in done:
                kill_group(child.pid, number)


def kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def blocks(hosts: Sequence[str], per_node: int, ranks: int) -> list[tuple[int, int, int, str]]:
    """Rank, local rank, node rank and host: node 0 has the first ranks."""
    return [(rank, rank % per_node, rank // per_node, hosts[rank // per_node]) for rank in range(ranks)]


def start(
    tasks: Sequence[Task],
    argv: Sequence[str],
    label: Callable[[Task], bytes] | None,
    cwd: str | None,
    *,
    late_s: float = 0.0,
    end_lines: bool = True,
    whole_errors: bool = True,
    targets: Callable[[Task], tuple[object, object]] = lambda _task: (sys.stdout.buffer, sys.stderr.buffer),
) -> Running:
    """Start every rank. Raises OSError where the program cannot be started at all. Without `whole_errors` every piece
    that arrives on standard error is labelled, whether it is a line or not."""
    running = Running(lines=Lines(late_s=late_s, end_lines=end_lines))
    for task in tasks:
        mine, theirs = socket.socketpair()
        mine.close()
        child = subprocess.Popen(
            [*_fault_argv(task.host), *argv],
            env=dict(task.env),
            cwd=cwd,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=enter(task),  # noqa: PLW1509 (no thread runs yet)
        )
        theirs.close()
        running.children[task.rank] = child
    for task in tasks:  # after the last fork: a thread that holds a lock while another rank is forked would stop it
        child = running.children[task.rank]
        assert child.stdout and child.stderr
        prefix = label(task) if label else b""
        out, err = targets(task)
        for source, target, whole in ((child.stdout, out, True), (child.stderr, err, whole_errors)):
            arguments = (task.rank, source, target, prefix, whole)
            threading.Thread(target=running.lines.pump, args=arguments, daemon=True).start()
    return running


def enter(task: Task) -> Callable[[], None]:
    """What a child does between fork and exec: die with its parent, enter the host, bind to CPUs. Raises OSError where
    the host was lost."""
    libc = ctypes.CDLL(None, use_errno=True)
    possible = task.cpus & os.sched_getaffinity(0)
    host = _open_host(task.host)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        here = Path.cwd()
        for namespace in host:
            libc.setns(namespace, 0)
        os.chdir(here)  # entering a mount namespace leads to its root
        if possible:  # the machine of a test has fewer CPUs than the machine that is pretended
            os.sched_setaffinity(0, possible)

    return prepare


def _fault_argv(host: str) -> list[str]:
    """The script that plants a fault on this host and then runs the task, where the test has one."""
    path = Path(os.environ.get("STANDIN_FAULTS", "/nonexistent")) / host
    return ["sh", str(path)] if path.exists() else []


def lost(host: str) -> bool:
    """Whether the host had a holder and that is gone."""
    holder = _holder(host)
    return holder is not None and not Path(f"/proc/{holder}/ns/mnt").exists()


def _holder(host: str) -> int | None:
    folder = os.environ.get("STANDIN_HOLDERS")
    path = Path(folder or "/nonexistent") / host
    return int(path.read_text()) if path.exists() else None


def _open_host(host: str) -> list[int]:
    """Descriptors of the host's namespaces, closed when a command is executed; none where it has none of its own."""
    holder = _holder(host)
    if holder is None:
        return []
    try:
        return [os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
    except FileNotFoundError:
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)) from None


def wait(
    running: Running,
    *,
    end_on_failure: bool,
    grace_s: float,
    on_end: Callable[[int, int], None],
    asked: Callable[[], int | None] = lambda: None,
    passed_on: Sequence[int] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    only_told: Sequence[int] = (),
) -> None:
    """Wait for all ranks. With `end_on_failure` the first failing one ends the others: SIGTERM, and SIGKILL after
    `grace_s`. A signal of `passed_on` to the launcher, or one that `asked` tells of, does the same; one of `only_told`
    is handed on and nothing else. On return every rank is gone and its output was written."""
    received: list[int] = []
    for number in passed_on:
        signal.signal(number, lambda got, _frame: received.append(got))
    for number in only_told:
        signal.signal(number, lambda got, _frame: running.kill(got))
    deadline = time.monotonic() + LONGEST_RUN_S
    kill_at: float | None = None
    while len(running.ended) < len(running.children):
        _collect(running, on_end)
        running.lines.arrive()
        failed = any(code != 0 for _, code in running.ended)
        wanted = asked() if not received else None
        if wanted:
            received.append(wanted)
        over = time.monotonic() > deadline
        if kill_at is None and (received or over or (end_on_failure and failed)):
            running.stopped = bool(received) or over
            running.kill(received[0] if received and received[0] != signal.SIGHUP else signal.SIGTERM)
            kill_at = time.monotonic() + grace_s
        elif kill_at is not None and time.monotonic() > kill_at:
            running.kill(signal.SIGKILL)
        time.sleep(0.01)
    for child in running.children.values():  # what a rank left in its group
        kill_group(child.pid, signal.SIGKILL)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(timeout=20)
    running.lines.arrive(all_of_them=True)


def _collect(running: Running, on_end: Callable[[int, int], None]) -> None:
    done = {rank for rank, _ in running.ended}
    for rank, child in running.children.items():
        if rank not in done and child.poll() is not None:
            running.ended.append((rank, child.returncode))
            on_end(rank, child.returncode)
