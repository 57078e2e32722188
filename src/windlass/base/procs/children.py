"""Processes that live as long as a run. They end with windlass and leave no process behind.

Each child leads its own process group. The kernel sends it a signal when windlass dies, even by SIGKILL. windlass
adopts orphans of its children (subreaper), so that it still finds a worker that lost its parent. If windlass is used as
a library, it does not touch children that the process had before the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from windlass.base.procs.command import pdeathsig
from windlass.errors import CommandError
from windlass.node.sys.reading import read_text

_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def adopt_orphans() -> Iterator[None]:
    """Adopt orphaned descendants while the block runs, and kill all descendants at its end.

    Processes below this one that lose their parent become its children. At the end of the block, all processes below
    this one are killed and reaped, except those that existed before.
    """
    import ctypes  # imported here: `windlass plan` does not need it

    others = frozenset(descendants())
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        sweep(others)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def start_child(
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    death: signal.Signals,
    merge: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a long-lived child with non-blocking pipes. Raises `CommandError` if it cannot start."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
            preexec_fn=pdeathsig(death),  # noqa: PLW1509  one system call, and windlass has no threads here
        )
    except OSError as error:
        raise CommandError(
            f"cannot start {argv[0]}: {error.strerror}",
            argv=argv,
            code=None,
            hint="check that it is installed here; a module may be missing",
        ) from error
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
    return child


def signal_group(child: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    """Send a signal to a child and its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, sig)


def descendants(others: frozenset[int] = frozenset()) -> set[int]:
    """Return every process below this one, except the `others` and their descendants."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                text = read_text(task / "children")
                fresh = {int(number) for number in text.split()} - found - others
                found |= fresh
                todo.extend(fresh)
    return found


def _tasks(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []


def sweep(others: frozenset[int], deadline_s: float = 5.0) -> None:
    """Kill and reap every process below this one, except the `others`. Returns when none is left or at the deadline."""
    end = time.monotonic() + deadline_s
    while (alive := descendants(others)) and time.monotonic() < end:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
