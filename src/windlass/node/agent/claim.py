"""Claim a directory for a run's agents on a node, and run the agent under a keeper.

The directory's name contains the run's random name, so no other user can create it first. Each agent claims it, and the
last agent removes it. If agents of this user were killed, the next agent removes their files, and only while it holds
the lock. This applies to this run's directory and to those of other runs next to it.

Two processes hold the services of a node. The agent does the work. The keeper is its parent and waits. The launcher
started the keeper and watches it. If the agent is killed (for example by the OOM killer), the keeper takes over: mounts
and caches remain, and the user sees a warning. If the keeper is killed, the agent continues as long as standard input
is open. The services end by themselves only when both are dead.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from windlass.node.sys.atomic import is_locked, replace_file, take_lock
from windlass.node.sys.folders import private_folder

_GATE_S = 60.0
_LEAVE_S = 2.0
_PARTS = ("a", "c", "h", "m", "w")
_NAME = re.compile(r"(windlass-\d+-)[0-9A-Za-z-]+(\.agents)")


class AlreadyClaimedError(Exception):
    """An agent of this run is on this node."""


@contextlib.contextmanager
def claimed(base: str, own: str, data: bytes) -> Iterator[str]:
    """Claim the agent's directory, store the bundle in it, and remove the directory at the end.

    The directory is locked while the agent lives. Directories of killed agents are removed first. Raises
    `AlreadyClaimedError` if another agent holds the directory.
    """
    sweep_other_runs(base)
    lock = _claim(base, own)
    try:
        bundle = os.path.join(own, "agent.pyz")
        replace_file(bundle, data)
        replace_file(os.path.join(own, "pid"), b"%d" % os.getpid())
        load_from(bundle)
        yield bundle
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)
        leave(base)


def _claim(base: str, own: str) -> int:
    while True:
        private_folder(base)
        try:
            # One agent at a time: a directory that was just created and is not locked yet looks like an abandoned one.
            gate = take_lock(os.path.join(base, "lock"), _GATE_S)
        except FileNotFoundError:
            continue
        try:
            if os.fstat(gate).st_nlink == 0:
                continue  # the last agent before us removed the directory
            sweep(base)
            os.makedirs(own, mode=0o700, exist_ok=True)
            return take_lock(os.path.join(own, "lock"))
        except BlockingIOError:
            raise AlreadyClaimedError(own) from None
        finally:
            os.close(gate)


def load_from(bundle: str) -> None:
    """Load modules from the bundle file on this node from now on.

    Processes that services start find the bundle by its path. They cannot use the copy in this process's memory, from
    which the first modules were loaded.
    """
    first, sys.path[0] = sys.path[0], bundle
    for module in list(sys.modules.values()):
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = [bundle + f[len(first) :] if f.startswith(first + "/") else f for f in folders]


def sweep(base: str) -> list[str]:
    """Remove directories of killed agents: those whose lock is free."""
    swept = []
    for entry in os.scandir(base):
        kind, _, rest = entry.name.partition(".")
        if kind == "py" and not os.path.exists("/proc/" + rest.partition(".")[0]):
            shutil.rmtree(entry.path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(os.path.join(base, "a")):
            if entry.is_dir(follow_symlinks=False) and is_locked(os.path.join(entry.path, "lock")) is False:
                shutil.rmtree(entry.path, ignore_errors=True)
                swept.append(entry.path)
    return swept


def other_runs(base: str) -> list[str]:
    """Return the directories of this user's other runs next to `base`, active or not."""
    above, name = os.path.split(base)
    named = _NAME.fullmatch(name)
    if named is None:
        return []
    found = []
    for entry in os.scandir(above):
        if entry.name != name and entry.name.startswith(named[1]) and entry.name.endswith(named[2]):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    found.append(entry.path)
    return found


def sweep_other_runs(base: str) -> None:
    """Remove the files of killed agents of this user's other runs. Caches clean up their own files and mounts."""
    for other in other_runs(base):
        with contextlib.suppress(OSError):  # its agents are starting or ending
            gate = take_lock(os.path.join(other, "lock"))
            try:
                sweep(other)
                if not os.path.isdir(os.path.join(other, "a")) or not os.listdir(os.path.join(other, "a")):
                    for part in ("h", "m", "w"):
                        shutil.rmtree(os.path.join(other, part), ignore_errors=True)
            finally:
                os.close(gate)
        leave(other)


def leave(base: str) -> None:
    """Remove the directory if it is empty."""
    with contextlib.suppress(OSError):
        gate = take_lock(os.path.join(base, "lock"), _LEAVE_S)
        try:
            for part in _PARTS:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(base, part))
            if os.listdir(base) == ["lock"]:
                os.unlink(os.path.join(base, "lock"))
                os.rmdir(base)
        finally:
            os.close(gate)


_LOOK_EVERY_S = 10.0


class Kept(NamedTuple):
    """The result of the child. `was_up`: it had called `up` before."""

    code: int
    killed_by: int
    was_up: bool
    asked_to_stop: bool


def run_kept(run: Callable[[Callable[[], None]], int], forwarded: Iterable[int]) -> Kept:
    """Run `run(up)` in a child process and wait for it. Forward the signals in `forwarded` to the child.

    Call it before the process starts threads. The child never returns from this function.
    """
    told, tell = os.pipe()
    asked: list[int] = []
    child = 0

    def forward(number: int, _frame: object) -> None:
        asked.append(number)
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in forwarded}
    # Without this, a signal between the fork and the next line would not reach the child.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, before)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(told)
            code = run(lambda: _say_up(tell))
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(tell)
    status = _wait(child)
    was_up = os.read(told, 1) == b"u"
    os.close(told)
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Kept(0 if killed_by else os.WEXITSTATUS(status), killed_by, was_up, bool(asked))


def _say_up(tell: int) -> None:
    os.write(tell, b"u")
    os.close(tell)


def _wait(child: int) -> int:
    """Wait until the child has ended.

    Python runs signal handlers between bytecode instructions. A signal just before a blocking call would be handled
    only after that call. The blocking call here is therefore a read that every signal interrupts.
    """
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
            select.select([woken], [], [], _LOOK_EVERY_S)
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(woken)
        os.close(wake)
