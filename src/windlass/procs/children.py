"""Processes that live as long as a run: started so that they end with windlass, ended without leaving anything.

Each child leads a process group of its own and is asked by the kernel to end when windlass dies, even by SIGKILL.
windlass adopts orphans of its children (subreaper), so that a worker which lost its parent is still found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from windlass.errors import CommandError
from windlass.procs.command import pdeathsig

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, processes that lose their parent below us become our children."""
    import ctypes  # here: `windlass plan` does not need to pay for it

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start_child(
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    death: signal.Signals,
    cwd: str | None = None,
    merge: bool = False,
    stdin: int | None = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a long-lived child with pipes that do not block. Raises `CommandError` where it cannot start."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
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


def descendants() -> set[int]:
    """Every living process below this one."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                text = (task / "children").read_text()
                fresh = {int(number) for number in text.split()} - found
                found |= fresh
                todo.extend(fresh)
    return found


def _tasks(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []


def sweep(deadline_s: float = 5.0) -> int:
    """Kill and reap whatever still lives below us. Returns how many there were; none is left, or the time is up."""
    swept = 0
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        reap()
        alive = descendants()
        if not alive:
            break
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                swept += 1
        time.sleep(0.01)
    return swept


def reap() -> None:
    """Collect adopted children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
