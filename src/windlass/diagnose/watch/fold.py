"""Combine the samples of all nodes into two files of the run folder: the current job, and its history.

Only the windlass process of the run writes them, so that 10,000 nodes need two files instead of 10,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.hostlist import fold_hostlist
from windlass.diagnose.watch.job import (
    FOLDER,
    HISTORY_FILE,
    MAX_HISTORY_BYTES,
    NOW_FILE,
    About,
    DeviceRow,
    HistoryHead,
    HistoryLine,
    Job,
    NodeRow,
    Note,
    RankActivity,
    RankRow,
)
from windlass.diagnose.watch.past import Past
from windlass.model.plan import Plan
from windlass.node.sys.atomic import open_append, replace_file
from windlass.node.sys.reading import read_bytes
from windlass.plan.profile import profiled_ranks

MAX_HISTORY_LINES = 512
_ACTIVITIES: tuple[RankActivity, ...] = ("steps", "python", "command", "ended")
"""In the order of the samplers' activity numbers."""
_NODES_PER_S = 500
_INTERVAL_S = 2.0
_MAX_NOTES = 64
_MAX_FILES = 4096
_Cells = tuple[float | None, ...]


def interval_s(nodes: int) -> float:
    """The sampling interval, long enough for one process to receive the samples of all nodes."""
    return max(_INTERVAL_S, nodes / _NODES_PER_S)


def about_of(plan: Plan) -> About:
    """The facts of a plan that the rules need."""
    return About(
        cpus_per_rank=min((len(rank.cpus) for rank in plan.binding.ranks if rank.cpus), default=0),
        bound_by=plan.binding.because,
        profiled=profiled_ranks(plan.request) if plan.request.profile is not None else (),
        remarks=tuple(remark for remark in plan.remarks if remark.kind == "tcp-fallback" and plan.nodes > 1),
    )


class JobFold:
    """The state of the job according to all samples so far."""

    def __init__(
        self,
        name: str,
        hosts: Sequence[str],
        every_s: float,
        cores: int = 0,
        *,
        started: float = 0.0,
        about: About | None = None,
    ) -> None:
        self._name = name
        self._hosts = tuple(hosts)
        self._every_s = every_s
        self._cores = cores
        self._started = started
        self._about = about or About()
        self._past = Past()
        self._nodes = [NodeRow(host, 0.0) for host in hosts]
        self._devices: dict[tuple[int, int], DeviceRow] = {}
        self._ranks: dict[int, RankRow] = {}
        self._notes: dict[str, set[str]] = {}
        self._saves: dict[int, dict[int, int]] = {}
        self._shared: dict[str, set[int]] = {}
        self.torn = 0

    def take(self, node: int, text: str) -> bool:
        """Add one text of a sampler. Returns False for a text that cannot be parsed, which is then ignored."""
        try:
            if not 0 <= node < len(self._hosts):
                raise ValueError("no such node")
            if text[:1] == "T":
                self.note(text[1:], self._hosts[node])
                return True
            rows = msgspec.json.decode(text[1:])
            if text[:1] == "N":
                self._nodes[node] = _convert([self._hosts[node], *rows], NodeRow)
            elif text[:1] == "D":
                for row in rows:
                    throttled, unverified = None if row[7] is None else bool(row[7]), any(row[8:])
                    device = _convert([node, *row[:7], throttled], DeviceRow)
                    self._devices[node, row[0]] = msgspec.structs.replace(device, unverified=unverified)
            elif text[:1] == "R":
                for row in rows:
                    activity = _ACTIVITIES[row[1]]
                    self._ranks[row[0]] = _convert([row[0], node, activity, *row[2:]], RankRow)
            elif text[:1] == "F":
                self._save(*msgspec.convert(rows, tuple[int, int, int, str]))
            else:
                raise ValueError("no such text")
        except (msgspec.MsgspecError, ValueError, IndexError, TypeError, KeyError):
            self.torn += 1
            return False
        return True

    def _save(self, rank: int, step: int, key: int, path: str) -> None:
        """Store which ranks saved a file and at which step, and find ranks that save it at the same step."""
        if len(self._saves) >= _MAX_FILES and key not in self._saves:
            self._saves.clear()
        ranks = self._saves.setdefault(key, {})
        ranks[rank] = step
        together = {other for other, at in ranks.items() if abs(at - step) <= 1}
        if len(together) > 1 and (path in self._shared or len(self._shared) < _MAX_NOTES):
            self._shared.setdefault(path, set()).update(together)

    def note(self, text: str, host: str) -> None:
        if text in self._notes or len(self._notes) < _MAX_NOTES:
            self._notes.setdefault(text, set()).add(host)

    def job(self, now: float, *, ended: bool = False) -> Job:
        order = {host: number for number, host in enumerate(self._hosts)}
        notes = [
            Note(text=text, nodes=fold_hostlist(tuple(sorted(hosts, key=lambda host: order.get(host, 0)))))
            for text, hosts in self._notes.items()
        ]
        if self.torn:
            notes.append(Note(text=f"{self.torn} samples could not be read", nodes=""))
        job = Job(
            at=round(now, 1),
            name=self._name,
            interval_s=self._every_s,
            ended=ended,
            cores=self._cores,
            started=self._started,
            about=self._about,
            shared_files=tuple((path, tuple(sorted(ranks))) for path, ranks in sorted(self._shared.items())),
            nodes=tuple(self._nodes),
            devices=tuple(self._devices[key] for key in sorted(self._devices)),
            ranks=tuple(self._ranks[rank] for rank in sorted(self._ranks)),
            notes=tuple(notes),
        )
        if not ended:
            self._past.add(job)
        return self._past.added_to(job)


def _convert(row: list[Any], kind: type[Any]) -> Any:
    return msgspec.convert(row, kind, strict=False)


class JobFiles:
    """Writes the two files of a run folder."""

    def __init__(self, folder: Path, *, every_s: float) -> None:
        self._folder = folder / FOLDER
        self._span_s = every_s
        self._every_s = every_s
        self._head: HistoryHead | None = None
        self._begin = 0.0
        self._sums: _Sums | None = None
        self._lines = 0

    def write(self, job: Job) -> None:
        """Raises `OSError` if the directory cannot be written."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        replace_file(self._folder / NOW_FILE, msgspec.json.encode(job))
        self._remember(job)

    def _remember(self, job: Job) -> None:
        head = HistoryHead(
            hosts=tuple(node.host for node in job.nodes),
            devices=tuple((device.node, device.index) for device in job.devices),
            ranks=tuple(rank.rank for rank in job.ranks),
        )
        if self._head is None:
            self._begin = job.at
        if head != self._head:
            self._flush(job.at)
            self._change_head(head)
        assert self._sums is not None
        self._sums.add(job)
        if job.at - self._begin >= self._span_s or job.ended:
            self._flush(job.at)

    def _change_head(self, head: HistoryHead) -> None:
        """Add empty columns to the existing lines, because a device or rank appeared for the first time."""
        path = self._folder / HISTORY_FILE
        old, self._head, self._sums = self._head, head, _Sums()
        lines = [widened(line, old, head) for line in _read_lines(path)] if old else []
        replace_file(path, b"".join(_line_bytes(value) for value in (head, *lines)))
        self._lines = len(lines)

    def _flush(self, now: float) -> None:
        if self._sums is None or not self._sums.count:
            return
        path = self._folder / HISTORY_FILE
        with open_append(path) as file:
            file.write(_line_bytes(self._sums.line(self._begin, now)))
            size = file.tell()
        self._lines += 1
        self._begin, self._sums = now, _Sums()
        if self._lines > MAX_HISTORY_LINES or size > MAX_HISTORY_BYTES:
            self._halve(path)

    def _halve(self, path: Path) -> None:
        """Merge each pair of neighbouring lines into one."""
        assert self._head is not None
        lines = _read_lines(path)
        merged = [merged_lines(lines[at : at + 2]) for at in range(0, len(lines), 2)]
        replace_file(path, b"".join(_line_bytes(value) for value in (self._head, *merged)))
        self._lines = len(merged)
        self._span_s *= 2


class _Sums:
    """Means over a span of time for each cell. Values that were not measured are ignored."""

    def __init__(self) -> None:
        self.count = 0
        self._tables: list[list[list[float]]] = [[], [], []]

    def add(self, job: Job) -> None:
        self.count += 1
        for table, rows in zip(self._tables, history_cells(job), strict=True):
            if len(table) < len(rows):
                width = len(rows[0])
                table += [[0.0] * (2 * width) for _ in range(len(rows) - len(table))]
            for sums, cells in zip(table, rows, strict=True):
                for at, value in enumerate(cells):
                    if value is not None:
                        sums[2 * at] += value
                        sums[2 * at + 1] += 1

    def line(self, begin: float, end: float) -> HistoryLine:
        means = [
            tuple(
                tuple(_short(sums[at] / sums[at + 1]) if sums[at + 1] else None for at in range(0, len(sums), 2))
                for sums in table
            )
            for table in self._tables
        ]
        nodes, devices, ranks = means
        return HistoryLine(begin=begin, end=end, nodes=nodes, devices=devices, ranks=ranks)  # type: ignore[arg-type]


def history_cells(job: Job) -> tuple[list[_Cells], list[_Cells], list[_Cells]]:
    """The columns of a history line for nodes, devices and ranks, in the order of `HistoryLine`."""
    nodes: list[_Cells] = [
        (
            node.cpu,
            node.memory_bytes,
            _sum(node.rx_bytes_s, node.tx_bytes_s),
            _sum(node.shared_read_bytes_s, node.shared_write_bytes_s),
            node.power_w,
        )
        for node in job.nodes
    ]
    devices: list[_Cells] = [(device.busy, device.power_w, device.memory_bytes) for device in job.devices]
    ranks: list[_Cells] = [(rank.step_ms, rank.wait_share, rank.comm_share, rank.cpu) for rank in job.ranks]
    return nodes, devices, ranks


def merged_lines(lines: Sequence[HistoryLine]) -> HistoryLine:
    """Merge neighbouring lines into one. The means are weighted by duration."""
    if len(lines) == 1:
        return lines[0]
    weights = [max(1e-9, line.end - line.begin) for line in lines]
    parts = [
        tuple(
            tuple(_mean(cells, weights) for cells in zip(*rows, strict=True))
            for rows in zip(*(getattr(line, name) for line in lines), strict=True)
        )
        for name in ("nodes", "devices", "ranks")
    ]
    return HistoryLine(
        begin=lines[0].begin,
        end=lines[-1].end,
        nodes=parts[0],  # type: ignore[arg-type]
        devices=parts[1],  # type: ignore[arg-type]
        ranks=parts[2],  # type: ignore[arg-type]
    )


def widened(line: HistoryLine, old: HistoryHead, new: HistoryHead) -> HistoryLine:
    """The line with the columns of another head."""
    devices = dict(zip(old.devices, line.devices, strict=False))
    ranks = dict(zip(old.ranks, line.ranks, strict=False))
    return msgspec.structs.replace(
        line,
        devices=tuple(devices.get(key, (None, None, None)) for key in new.devices),
        ranks=tuple(ranks.get(rank, (None, None, None, None)) for rank in new.ranks),
    )


def _mean(cells: Iterable[float | None], weights: Iterable[float]) -> float | None:
    known = [(cell, weight) for cell, weight in zip(cells, weights, strict=True) if cell is not None]
    whole = sum(weight for _, weight in known)
    return _short(sum(cell * weight for cell, weight in known) / whole) if known else None


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _short(value: float) -> float:
    return int(value) if abs(value) >= 1000 else float(f"{value:.4g}")


def _line_bytes(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _read_lines(path: Path) -> list[HistoryLine]:
    lines = []
    for text in read_bytes(path, 2 * MAX_HISTORY_BYTES).splitlines()[1:]:
        try:
            lines.append(msgspec.json.decode(text, type=HistoryLine))
        except msgspec.DecodeError:
            continue
    return lines
