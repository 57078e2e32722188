"""Processes that live as long as a run: started so that they end with windlass, ended without leaving anything.

Each child leads a process group of its own and is asked by the kernel to end when windlass dies, even by SIGKILL.
windlass adopts orphans of its children (subreaper), so that a worker which lost its parent is still found. Where
windlass is used as a library, children that the process had before it started a run are left alone.
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
    """While the block runs, processes that lose their parent below us become our children. At its end all processes
    below us are killed and reaped, but for those that were there before."""
    import ctypes  # here: `windlass plan` does not need to pay for it

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
    """Start a long-lived child with pipes that do not block. Raises `CommandError` where it cannot start."""
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
            hint="is it installed here, and is a module missing?",
        ) from error
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
    return child


def signal_group(child: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    """Send a signal to a child and all of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, sig)


def descendants(others: frozenset[int] = frozenset()) -> set[int]:
    """Every process below this one, but for the `others` and what is below them."""
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
    """Kill and reap whatever lives below us, but for the `others`. None is left, or the time is up."""
    end = time.monotonic() + deadline_s
    while (alive := descendants(others)) and time.monotonic() < end:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
