"""Sample one node every few seconds as a service of the agent, and send a few numbers.

The service makes the directory in which the ranks of the node find the start-up hook and write their records. The
directory is not on a shared file system. The messages are short texts, a letter and JSON: `N` the node, `D` devices,
`R` ranks, `T` a note. They contain only numbers, because launchers cut long lines.

`DeviceReader` reads the accelerators of a node from the first source that works: the vendor's library or tool, or the
driver's files.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from windlass.node.sampler import amd, host, intel, nvidia
from windlass.node.sampler.readings import DeviceReading, listed
from windlass.node.sampler.steps import RankSteps, follow
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.mounts import mount_of, mounts
from windlass.node.sys.tools import MissingError, text_of

Source = Callable[[], "list[DeviceReading]"]


def sources(root: str = "/") -> list[tuple[str, list[Callable[[], Source]]]]:
    """Return the sources of each vendor with devices here, best first. Calling one sets it up or raises."""
    found: list[tuple[str, list[Callable[[], Source]]]] = []
    if nvidia.present(root):
        found.append(("NVIDIA", [lambda: nvidia.Nvml().devices, lambda: nvidia.smi_devices]))
    if amd.present(root):
        by_files: Callable[[], Source] = lambda: lambda: amd.sysfs_devices(root)  # noqa: E731
        found.append(("AMD", [by_files, lambda: amd.amd_smi_devices, lambda: amd.rocm_smi_devices]))
    if intel.present(root):
        found.append(("Intel", [lambda: intel.xpu_smi_devices, lambda: intel.Sysfs(root).devices]))
    return found


class DeviceReader:
    """Reads all devices of the node. If a source fails, the next one is used, with a note."""

    def __init__(self, root: str = "/") -> None:
        self.notes: list[str] = []
        self._vendors = [(vendor, ways) for vendor, ways in sources(root)]
        self._reading: dict[str, Source] = {}

    def read(self) -> list[DeviceReading]:
        found: list[DeviceReading] = []
        for vendor, ways in self._vendors:
            found += self._read_vendor(vendor, ways)
        return [device._replace(place=index) for index, device in enumerate(found)] if len(self._vendors) > 1 else found

    def _read_vendor(self, vendor: str, ways: list[Callable[[], Source]]) -> list[DeviceReading]:
        while ways or vendor in self._reading:
            try:
                if vendor not in self._reading:
                    self._reading[vendor] = ways.pop(0)()
                devices = self._reading[vendor]()
                if devices:
                    return [device._replace(unverified=vendor != "NVIDIA") for device in devices]
                raise MissingError("no device is shown")
            except Exception as error:  # a broken tool costs its figures, never the agent
                self._reading.pop(vendor, None)
                said = str(error) if isinstance(error, MissingError) else "%s: %s" % (type(error).__name__, error)
                if not ways:
                    self.notes.append("%s devices are not sampled: %s" % (vendor, said[:300]))
        return []


MAX_TEXT = 640
ACTIVITIES = ("steps", "python", "command", "ended")
_PARTS = ("python", "steps", "pids")
_FIRST_S = 0.2
_MAX_PATH = 80
_NO_RECORD = (None, None, None, None, None, None, "", None, None, None, None)
_SEEN, _FULL = 0.02, 0.95
_SENT = DeviceReading._fields.index("throttled")
"""Number of device fields that are sent. The text fields after them are not sent."""


def make(node: Any, settings: dict[str, Any]) -> SamplerService:
    return SamplerService(node.folder, node.run_id, node.number, settings)


class SamplerService:
    """Runs the sampler as a service of the agent.

    `settings` has `interval_s`, `folder` and `hook`. `folder` is the name of the service's directory in the agents'
    directory. Ranks find it by this name. `hook` has the texts of the files that ranks import at their start.
    """

    def __init__(self, base: str, run_id: str, number: int, settings: dict[str, Any], root: str = "/") -> None:
        self._above = os.path.join(base, settings["folder"])
        self.folder = os.path.join(self._above, "%s.%d" % (run_id, number))
        self._base = base
        self._settings = settings
        self._root = root
        self._lock = threading.Lock()
        self._said: list[str] = []
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._sampler = Sampler(self.folder, root)

    def start(self) -> None:
        sweep(self._base, self._above)
        shutil.rmtree(self.folder, ignore_errors=True)
        for part in _PARTS:
            os.makedirs(os.path.join(self.folder, part), mode=0o700)
        for name, text in self._settings["hook"].items():
            replace_file(os.path.join(self.folder, "python", name), text.encode())

    def news(self) -> list[str]:
        if self._thread is None and not self._stop.is_set():  # here, so that a keeper that takes over also samples
            self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
            self._thread.start()
        with self._lock:
            said, self._said = self._said, []
        return said

    def _run(self) -> None:
        every_s = float(self._settings["interval_s"])
        due_s = min(_FIRST_S, every_s)
        while not self._stop.wait(due_s):
            due_s = every_s
            try:
                texts = self._sampler.look()
            except Exception as error:  # failing figures cost a note, not the agent
                texts = ["T%s: %s" % (type(error).__name__, str(error)[:300])]
            with self._lock:
                self._said += texts

    def end(self) -> dict[str, Any]:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
        return {"looks": self._sampler.looks}

    def last_news(self) -> list[str]:
        """Return the final figures of the ranks. The directory is removed afterwards."""
        try:
            texts = self.news() + self._sampler.last_texts()
        except Exception:
            texts = []
        shutil.rmtree(self.folder, ignore_errors=True)
        return texts


class Sampler:
    """Takes samples of a node."""

    def __init__(self, folder: str, root: str = "/") -> None:
        self.looks = 0
        self._folder = folder
        self._root = root
        self._devices = DeviceReader(root)
        self._before: tuple[float, host.HostCounters] | None = None
        self._ranks: dict[int, RankSteps] = {}
        self._cpu: dict[int, tuple[float, float, float | None]] = {}
        self._cores: tuple[frozenset[int], float, float, float] | None = None
        self._saved: dict[int, tuple[str, int]] = {}
        self._noted: set[str] = set()

    def look(self) -> list[str]:
        """Return the texts of one sample."""
        self.looks += 1
        pids = self._pids()
        texts = [self._node_text(next(iter(pids.values()), None))]
        rows = [
            [_short(value) for value in device[:_SENT]]
            + [device.throttled if device.throttled is None else int(device.throttled), int(device.unverified)]
            for device in self._devices.read()
        ]
        return [*texts, *_packed("D", rows), *self.ranks_texts(pids), *self._saves(), *self._notes()]

    def last_texts(self) -> list[str]:
        """Return texts of node and ranks, without the devices' tools, which may be slow."""
        pids = self._pids()
        return [self._node_text(next(iter(pids.values()), None)), *self.ranks_texts(pids), *self._saves()]

    def _node_text(self, pid: int | None) -> str:
        now, counted = time.monotonic(), host.counters(self._root)
        before = self._before
        self._before = (now, counted)
        rates: list[float | None] = [None] * len(counted)
        if before is not None and now > before[0]:
            rates = [
                (new - old) / (now - before[0]) if new is not None and old is not None and new >= old else None
                for new, old in zip(counted, before[1])
            ]
        cpu = None
        if before is not None and counted.cpu_all and before[1].cpu_all is not None:
            ticks = counted.cpu_all - before[1].cpu_all
            cpu = (counted.cpu_busy - before[1].cpu_busy) / ticks if ticks > 0 else None  # type: ignore[operator]
        used, limit = host.memory(pid, self._root)
        power = host.power_w(self._root)
        row = [round(time.time(), 1), cpu, used, limit, *rates[2:8], power if power is not None else rates[8]]
        return "N" + _json([_short(value) for value in row])

    def _pids(self) -> dict[int, int]:
        folder = os.path.join(self._folder, "pids")
        found = {}
        for name in listed(folder):
            text = text_of(os.path.join(folder, name))
            if name.isdigit() and text.isdigit():
                found[int(name)] = int(text)
        return found

    def ranks_texts(self, pids: dict[int, int] | None = None) -> list[str]:
        """Return a row for every rank of this node: those that started, and those that left a record."""
        pids = self._pids() if pids is None else pids
        follow(os.path.join(self._folder, "steps"), self._ranks)
        running = host.processes(self._root)
        now = time.monotonic()
        trees = {rank: host.tree(pid, running) for rank, pid in pids.items()}
        taken = self._taken([pid for mine in trees.values() for pid in mine], running)
        rows = []
        for rank in sorted({*pids, *self._ranks}):
            mine = trees.get(rank, [])
            cpu_s = sum(running[pid].cpu_s for pid in mine)
            delay_s = host.run_delay_s(max(mine, key=lambda pid: running[pid].cpu_s), self._root) if mine else None
            before = self._cpu.get(rank)
            self._cpu[rank] = (now, cpu_s, delay_s)
            cores = delay = None
            if before and now > before[0] and mine:
                cores = max(0.0, (cpu_s - before[1]) / (now - before[0]))
                delay = taken
                if delay_s is not None and before[2] is not None:
                    delay = min(1.0, max(0.0, (delay_s - before[2]) / (now - before[0])))
            memory = sum(running[pid].memory_bytes for pid in mine) if mine else None
            gone = rank in pids and not mine
            rows.append([*rank_row(rank, self._ranks.get(rank), gone, cores, memory), _short(delay)])
        return _packed("R", rows)

    def _taken(self, mine: list[int], running: dict[int, host.ProcessUsage]) -> float | None:
        """Return the share of the ranks' cores that other processes used since the last sample.

        0 if a core was free. For kernels that do not count how long a process waits for a core. None if unknown, for
        example because a container's processes are not descendants of the rank.
        """
        cpus = host.allowed_cpus(mine)
        own = sum(running[pid].cpu_s for pid in mine)
        busy, whole = host.core_seconds(cpus, text_of(os.path.join(self._root, "proc/stat")))
        before, self._cores = self._cores, (cpus, own, busy, whole)
        if before is None or before[0] != cpus or whole <= before[3] or own <= before[1]:
            return None
        own, busy, whole = own - before[1], busy - before[2], whole - before[3]
        if own < _SEEN * whole:
            return None
        return max(0.0, busy - own) / whole if busy > _FULL * whole else 0.0

    def _saves(self) -> list[str]:
        """Return files that ranks have begun to save since the last sample.

        Two ranks have the same key only if they write the same file. For a node-local file system, the key includes the
        node's directory.
        """
        texts = []
        for rank, record in self._ranks.items():
            if record.saved is not None and record.saved != self._saved.get(rank):
                self._saved[rank] = path, step = record.saved
                shared = mount_of(os.path.dirname(path), mounts()).served_by == "shared"
                where = path if shared else "%s:%s" % (self._folder, path)
                texts.append("F" + _json([rank, step, zlib.crc32(where.encode()), path[-_MAX_PATH:]]))
        return texts

    def _notes(self) -> list[str]:
        said = list(self._devices.notes)
        for rank, record in self._ranks.items():
            said += record.notes
            if record.torn:
                said.append("the record of rank %d has lines that cannot be read" % rank)
        fresh = [text for text in said if text not in self._noted]
        self._noted.update(fresh)
        return ["T" + text for text in fresh]


def rank_row(rank: int, record: RankSteps | None, gone: bool, cores: float | None, memory: int | None) -> list[Any]:
    if record is None:
        return [rank, 3 if gone else 2, 0, None, None, None, None, _short(cores), memory, *_NO_RECORD]
    activity = 3 if gone else 0 if record.steps else 1 if record.python else 2
    figures = [record.last_at, record.step_ms, record.wait_share, record.comm_share, cores, memory]
    all_of_them = [record.all_ms, record.p95_ms, record.all_wait_share, record.alloc_retries]
    phases = [_short(seconds) for seconds in record.phase_s] if record.steps else None
    now = [record.median_ms, record.first_at, record.doing, record.doing_at, record.gil_us, record.nan_step, phases]
    return [rank, activity, record.steps, *(_short(value) for value in (*figures, *all_of_them, *now))]


def _short(value: Any) -> Any:
    """Round a number to its significant digits."""
    if not isinstance(value, float):
        return value
    if abs(value) >= 1000:
        return round(value, 1) if abs(value) > 1e8 and value < 1e10 else int(value)
    return float("%.4g" % value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _packed(letter: str, rows: list[list[Any]]) -> list[str]:
    """Pack rows into as few texts as possible."""
    texts: list[str] = []
    held: list[str] = []
    for row in (_json(row) for row in rows):
        if held and sum(len(text) + 1 for text in held) + len(row) > MAX_TEXT:
            texts.append("%s[%s]" % (letter, ",".join(held)))
            held = []
        held.append(row)
    return texts + (["%s[%s]" % (letter, ",".join(held))] if held else [])


def sweep(base: str, above: str) -> None:
    """Remove the files of a killed sampler. A running agent has a directory of the same name next to them."""
    for name in listed(above):
        if not os.path.isdir(os.path.join(base, "a", name)):
            shutil.rmtree(os.path.join(above, name), ignore_errors=True)
