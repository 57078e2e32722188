"""Watch the ranks of one node as a service of the agent: heartbeats, memory kills, and orphans.

Ranks that use `windlass.Snapshot` write `<step> <time>` into one file per rank in a directory of this node. This causes
no load on the shared file system. The service sends each event as one short JSON text: the ranks have heartbeats, no
step finished for too long, steps finish again, ranks started or stopped writing, reading or computing, the kernel
killed a process for memory. Every few seconds it also sends a heartbeat of the agent. At the end it kills processes
that remain.

The service asks the kernel whether ranks write. Launchers hold a line back until it ends, and a progress bar never ends
its line. The service counts the bytes that the main thread of a rank wrote, to any file. It ignores other threads,
because stores and watchdogs also write during a hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import shutil
import signal
import time
from typing import Any

from windlass.node.agent.diagnostics import oom_kills
from windlass.node.agent.host import NodeContext
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.identity import kill_marked, marked, start_of
from windlass.node.sys.reading import open_plain

_LOOKS, _LOOK_S = 10, 3.0
"""Checks of the ranks' activity per silence limit, and the maximum number of seconds between two checks."""
_IO_BYTES = 256 << 10
"""Less input and output than this per silence limit is not work: stores and watchdogs also cause some."""
_CPU_SHARE = 0.5
_COPIED = {
    "standby.py": "standby.py",
    "standby_ask.py": "standby_ask.py",
    "modules_hook.py": "python/sitecustomize.py",
}
"""Programs of this package for the rank scripts, which the ranks' Python runs."""
_END_S = 0.1
"""Ranks that lost another rank cannot finish a step. After SIGTERM they get this long before SIGKILL."""
ALIVE = '{"alive":1}'


def make(node: NodeContext, settings: dict[str, Any]) -> WatchService:
    return WatchService(node, settings)


class WatchService:
    """Watches the ranks of one node.

    `settings` has `mark`, an environment entry of all processes of this start, without the node's number at its end. It
    also has `silent_s`: ranks that finish no step for so many seconds are reported. None means never.
    """

    def __init__(self, node: NodeContext, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._mark = "%s%d" % (settings["mark"], node.number)
        self._base = node.folder
        self.folder = os.path.join(node.folder, "w", "%s.%d" % (node.run_id, node.number))
        self._steps: dict[int, int] = {}
        self._moved = time.monotonic()
        self._beats = False
        self._silent = False
        self._written: dict[int, int] = {}
        self._wrote = self._asked = time.monotonic()
        self._writes = self._reads = self._computes = False
        self._work: list[tuple[float, int, float]] = []
        self._done: dict[int, tuple[int, float]] = {}
        self._alive_at = 0.0
        self._oom = oom_kills()
        self._oom_told = 0
        self._standby_told = False

    def start(self) -> None:
        sweep(self._base)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(os.path.join(self.folder, "python"), mode=0o700, exist_ok=True)
        for module, name in _COPIED.items():
            replace_file(os.path.join(self.folder, name), pkgutil.get_data(__package__, module) or b"")

    def obey(self, order: dict[str, Any]) -> list[str]:
        """Do what windlass orders between two starts of the ranks in place: end them all, or start them again."""
        if order["order"] == "end":
            end_ranks(self.folder, self._mark.encode("utf-8", "surrogateescape"))
            said = {"ended": order["attempt"], "oom": oom_kills() - self._oom, **_reached(read_beats(self.folder))}
            return [json.dumps(said)]
        for name in os.listdir(self.folder):
            if name.isdigit():
                os.unlink(os.path.join(self.folder, name))
        self._steps, self._moved, self._beats, self._silent = {}, time.monotonic(), False, False
        for name in os.listdir(self.folder):
            if name.endswith(".order"):
                script = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.write(script, b"%d\n" % order["attempt"])
                os.close(script)
        return []

    def news(self) -> list[str]:
        said: list[dict[str, Any]] = []
        now = time.monotonic()
        steps = read_beats(self.folder)
        if steps and not self._beats:
            self._beats = True
            said.append({"beats": len(steps)})
        if steps != self._steps:
            self._steps, self._moved = steps, now
            if self._silent:
                self._silent = False
                said.append({"moves": min(steps.values())})
        limit = self._settings.get("silent_s")
        if limit and self._beats and not self._silent and now - self._moved >= limit:
            self._silent = True
            behind = min(steps.values()) if steps else -1
            said.append({"silent": round(now - self._moved, 1), "step": behind, "ranks": _at(steps, behind)})
        if limit and now - self._asked >= min(limit / _LOOKS, _LOOK_S):
            said += self._news_of_writes(limit) + self._news_of_work(limit)
        said += self._news_of_standby()
        killed = oom_kills() - self._oom
        if killed > self._oom_told:
            said.append({"oom": killed - self._oom_told})
            self._oom_told = killed
        alive = now - self._alive_at >= self._settings.get("alive_s", float("inf"))
        if alive:
            self._alive_at = now
        return [json.dumps(news, separators=(",", ":")) for news in said] + [ALIVE] * alive

    def _news_of_standby(self) -> list[dict[str, Any]]:
        """Report the standby process once, when it is ready or has decided not to stay."""
        said: list[dict[str, Any]] = []
        if not self._standby_told:
            with contextlib.suppress(OSError, ValueError):
                with open_plain(os.path.join(self.folder, "standby.json")) as file:
                    said.append({"standby": json.loads(file.read(1 << 16))})
                self._standby_told = True
        return said

    def _news_of_writes(self, limit: float) -> list[dict[str, Any]]:
        """Report when ranks begin to write, and when none has written for `limit` seconds."""
        written = written_bytes(self._mark.encode("utf-8", "surrogateescape"))
        self._asked = now = time.monotonic()
        moved = any(count != self._written.get(pid) for pid, count in written.items())
        self._written = written
        if moved:
            self._wrote = now
        writes = now - self._wrote < limit if self._writes else moved
        if writes == self._writes:
            return []
        self._writes = writes
        return [{"writes": writes}]

    def _news_of_work(self, limit: float) -> list[dict[str, Any]]:
        """Report when ranks begin to read and write files or to compute, and when they have not for `limit` seconds."""
        now, done = time.monotonic(), work_done(self._mark.encode("utf-8", "surrogateescape"))
        moved = [
            (io - self._done.get(pid, (0, 0.0))[0], cpu - self._done.get(pid, (0, 0.0))[1])
            for pid, (io, cpu) in done.items()
        ]
        self._done = done
        self._work = [one for one in self._work if now - one[0] < limit]
        self._work.append((now, sum(io for io, _ in moved), sum(cpu for _, cpu in moved)))
        reads = sum(io for _, io, _ in self._work) >= _IO_BYTES
        computes = sum(cpu for _, _, cpu in self._work) >= _CPU_SHARE * limit
        said: list[dict[str, Any]] = []
        if reads != self._reads:
            self._reads = reads
            said.append({"reads": reads})
        if computes != self._computes:
            self._computes = computes
            said.append({"computes": computes})
        return said

    def end(self) -> dict[str, Any]:
        """Kill all processes that still carry the run's mark. Return the figures of this node.

        The ranks have ended, or no process waits for them.
        """
        steps = read_beats(self.folder)
        killed = max(oom_kills() - self._oom, self._oom_told)  # control groups that have ended lose their counts
        figures: dict[str, Any] = {"oom": killed, "beating": len(steps), **_reached(steps)}
        figures["swept"] = kill_marked(self._mark.encode("utf-8", "surrogateescape"), 5.0)
        shutil.rmtree(self.folder, ignore_errors=True)
        return figures


def end_ranks(folder: str, mark: bytes) -> None:
    """End the ranks of this node that still run, and all other processes of this start that ranks have left.

    The rank scripts stay, and so do their other children: the standby process, and copies of output.
    """
    roots, scripts = _numbers(folder, ".pid"), _numbers(folder, ".script")
    pids = {pid: start_of(pid) for pid in _below(roots)}
    give_up = time.monotonic() + _END_S
    for pid in roots:
        _signal(pid, pids[pid], signal.SIGTERM)
    while any(start and start_of(pid) == start for pid, start in pids.items()) and time.monotonic() < give_up:
        time.sleep(0.01)
    for pid in marked(mark):
        with contextlib.suppress(OSError, IndexError), open("/proc/%d/stat" % pid, "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) not in scripts:
                pids.setdefault(pid, start_of(pid))
    for pid, start in pids.items():
        _signal(pid, start, signal.SIGKILL)


def _numbers(folder: str, suffix: str) -> set[int]:
    """Return the process numbers in the files of this kind that the rank scripts wrote."""
    found = set()
    for name in os.listdir(folder):
        if name.endswith(suffix):
            with contextlib.suppress(OSError, ValueError), open_plain(os.path.join(folder, name)) as file:
                found |= {int(word) for word in file.read(1 << 12).split()}
    return found


def _below(roots: set[int]) -> set[int]:
    found, todo = set(roots), list(roots)
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir("/proc/%d/task" % pid):
                with open_plain("/proc/%d/task/%s/children" % (pid, task)) as file:
                    fresh = {int(word) for word in file.read().split()} - found
                found |= fresh
                todo += fresh
    return found


def _signal(pid: int, start: str, number: int) -> None:
    if start and start_of(pid) == start:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def sweep(base: str) -> None:
    """Remove the files of a killed watch. A running agent has a directory of the same name next to them."""
    try:
        names = os.listdir(os.path.join(base, "w"))
    except OSError:
        return
    for name in names:
        if not os.path.isdir(os.path.join(base, "a", name)):
            shutil.rmtree(os.path.join(base, "w", name), ignore_errors=True)


def read_beats(folder: str) -> dict[int, int]:
    """Return the last step of each rank that has reported one."""
    found: dict[int, int] = {}
    for name in os.listdir(folder):
        if name.isdigit():
            try:
                with open_plain(os.path.join(folder, name)) as file:
                    found[int(name)] = int(file.read(64).split()[0])
            except (OSError, ValueError, IndexError):
                continue
    return found


def written_bytes(mark: bytes) -> dict[int, int]:
    """Return the bytes that the main thread of each marked process has written. Empty without kernel support."""
    found: dict[int, int] = {}
    for pid in marked(mark):
        try:
            with open("/proc/%d/task/%d/io" % (pid, pid), "rb") as file:
                found[pid] = next(int(line.split()[1]) for line in file if line.startswith(b"wchar:"))
        except (OSError, ValueError, StopIteration):
            continue
    return found


def work_done(mark: bytes) -> dict[int, tuple[int, float]]:
    """Return the bytes that each marked process has read and written so far, and its CPU seconds."""
    found: dict[int, tuple[int, float]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for pid in marked(mark):
        try:
            with open("/proc/%d/io" % pid, "rb") as file:
                io = sum(int(line.split()[1]) for line in file if line[1:6] == b"char:")
            with open("/proc/%d/stat" % pid, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            found[pid] = (io, (int(fields[11]) + int(fields[12])) / tick)
        except (OSError, ValueError, IndexError):
            continue
    return found


def _reached(steps: dict[int, int]) -> dict[str, int]:
    return {"step": max(steps.values()), "behind": min(steps.values())} if steps else {}


def _at(steps: dict[int, int], step: int) -> list[int]:
    return sorted(rank for rank, at in steps.items() if at == step)[:16]
