"""Finds what a test left behind: processes, mounts and network namespaces.

Every test runs with a mark of its own in the environment, which whatever it starts inherits. Processes are ours only
where they carry the mark, mounts only under the session's temporary folder, namespaces only where their name holds the
mark, so that tests which run at the same time do not accuse each other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

MARK_VARIABLE = "WLTEST_MARK"


def new_mark() -> str:
    """Short enough for the name of a network interface."""
    return f"wl{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    processes: tuple[tuple[int, str], ...] = ()
    mounts: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.mounts or self.namespaces)

    def text(self) -> str:
        lines = [f"process {pid}: {command}" for pid, command in self.processes]
        lines += [f"mount {mount}" for mount in self.mounts]
        lines += [f"network namespace {name}" for name in self.namespaces]
        return "\n".join(lines)


def marked_processes(mark: str) -> tuple[tuple[int, str], ...]:
    """Living processes (zombies do not count) that carry the mark, but for this one."""
    needle = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if command and _state(folder) != "Z":
                    found.append((int(folder.name), command))
    return tuple(found)


def _state(folder: Path) -> str:
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]


def mounts_under(folder: Path) -> tuple[str, ...]:
    """Mount points below a folder, the deepest first."""
    root = os.path.realpath(folder)
    points = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        point = line.split()[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
        if point.startswith(root + "/"):
            points.append(point)
    return tuple(sorted(points, key=len, reverse=True))


def named_namespaces(mark: str) -> tuple[str, ...]:
    folder = Path("/run/netns")
    return tuple(sorted(p.name for p in folder.iterdir() if mark in p.name)) if folder.is_dir() else ()


def look(mark: str, folder: Path, *, ignore_mounts: frozenset[str] = frozenset()) -> Leftovers:
    return Leftovers(
        processes=marked_processes(mark),
        mounts=tuple(m for m in mounts_under(folder) if m not in ignore_mounts),
        namespaces=named_namespaces(mark),
    )


def look_until_clean(
    mark: str, folder: Path, *, patience_s: float, ignore_mounts: frozenset[str] = frozenset()
) -> Leftovers:
    """What is still there after the patience that an orderly end may take."""
    end = time.monotonic() + patience_s
    while True:
        found = look(mark, folder, ignore_mounts=ignore_mounts)
        if not found or time.monotonic() >= end:
            return found
        time.sleep(0.05)


def remove(found: Leftovers) -> None:
    """Clear away, so that one leak does not fail the tests after it."""
    for pid, _ in found.processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for mount in found.mounts:
        subprocess.run(["umount", "-l", mount], capture_output=True, timeout=30, check=False)
    for name in found.namespaces:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30, check=False)
