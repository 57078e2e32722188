"""The folder of a run's agents on a node: made, claimed by each agent, and gone with the last of them.

Its name holds the run's own random name, so nobody can be there before us. What killed agents of this user left, in
this run's folder or in those of other runs beside it, is removed by the next agent, and only under its lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator

from windlass.node.sys.atomic import replace_file
from windlass.node.sys.folders import private_folder
from windlass.node.sys.locks import is_locked, take_lock

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
