"""The folder of a run's agents on a node: made, claimed by each agent, and gone with the last of them.

Its name holds the run's own random name, so nobody can be there before us. What killed agents of this user left, in
this run's folder or in those of other runs beside it, is removed by the next agent, and only under its lock.

Two processes hold the services of a node: the agent, which does the work, and the keeper above it, which waits.

The launcher started the keeper and watches it; the agent is its child. Where the agent is killed (for memory, say), the
keeper takes its place: mounts and caches stay, and it costs a warning. Where the keeper is killed, the agent goes on as
long as the standard input is open. Only when both are gone do the services end by themselves.
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
_PARTS = ("a", "c", "h", "w")
_NAME = re.compile(r"(windlass-\d+-)[0-9A-Za-z-]+(\.agents)")


class AlreadyClaimedError(Exception):
    """An agent of this run is on this node."""


@contextlib.contextmanager
def claimed(base: str, own: str, data: bytes) -> Iterator[str]:
    """The agent's own folder, locked while it lives, with the travelled file in it; removed at the end. What killed
    agents left is swept first. `AlreadyClaimedError` where an agent has it."""
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
            # One after the other: a folder between its making and its locking looks like one that was left.
            gate = take_lock(os.path.join(base, "lock"), _GATE_S)
        except FileNotFoundError:
            continue
        try:
            if os.fstat(gate).st_nlink == 0:
                continue  # the last agent before us took the folder away
            sweep(base)
            os.makedirs(own, mode=0o700, exist_ok=True)
            return take_lock(os.path.join(own, "lock"))
        except BlockingIOError:
            raise AlreadyClaimedError(own) from None
        finally:
            os.close(gate)


def load_from(bundle: str) -> None:
    """From now on modules come from the file on this node: what services start finds it by name, and not the copy in
    this process's memory that the first modules came from."""
    first, sys.path[0] = sys.path[0], bundle
    for module in list(sys.modules.values()):
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = [bundle + f[len(first) :] if f.startswith(first + "/") else f for f in folders]


def sweep(base: str) -> list[str]:
    """Removes folders of agents that were killed: those whose lock nobody holds."""
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
    """Folders of this user's other runs beside `base`, alive or not."""
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
    """Removes what killed agents of this user's other runs left on this node; caches see to their own, with mounts."""
    for other in other_runs(base):
        with contextlib.suppress(OSError):  # its agents are just coming, or going
            gate = take_lock(os.path.join(other, "lock"))
            try:
                sweep(other)
                if not os.path.isdir(os.path.join(other, "a")) or not os.listdir(os.path.join(other, "a")):
                    for part in ("h", "w"):
                        shutil.rmtree(os.path.join(other, part), ignore_errors=True)
            finally:
                os.close(gate)
        leave(other)


def leave(base: str) -> None:
    """Removes the folder where nothing is left in it."""
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
    """What became of the child. `was_up`: it had called `up` before."""

    code: int
    killed_by: int
    was_up: bool
    asked_to_stop: bool


def run_kept(run: Callable[[Callable[[], None]], int], forwarded: Iterable[int]) -> Kept:
    """Runs `run(up)` in a child to its end; signals of `forwarded` go to the child as well. Call it before there are
    threads. The child never returns from here."""
    told, tell = os.pipe()
    asked: list[int] = []
    child = 0

    def forward(number: int, _frame: object) -> None:
        asked.append(number)
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in forwarded}
    # A signal that came between the fork and the next line would be forwarded to nobody.
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
    """Until the child has ended. Python runs handlers between its own steps: a signal that comes just before a call
    that blocks would wait with it, so what blocks here is a read that every signal ends."""
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
