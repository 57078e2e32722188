"""Figures over the whole run from the samplers: spans of time, devices, energy. Pure.

Any figure may be missing. None means "not measured", never 0. Ten thousand ranks are aggregated: a row of a heat map is
a group of devices or nodes, and a long history is thinned before it is read.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from windlass.diagnose.watch.job import HistoryHead, HistoryLine, Job

MAX_CELLS = 2_000_000
"""Maximum number of rank and device values to read. Above it, only every second, third… line is read."""
MAX_SPANS = 240
_HEAT_ROWS, _HEAT_COLUMNS = 48, 96
_WH = 3600.0
Cell = Callable[[HistoryLine, int], "float | None"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time: the median step and its range over the ranks, and means of the shares."""

    begin: float
    end: float
    step_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """A value per group of rows and span of time. None if it was not measured."""

    what: str
    unit: str
    rows: tuple[str, ...]
    times: tuple[float, ...]
    cells: tuple[tuple[float | None, ...], ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a run."""

    spans: tuple[Span, ...] = ()
    heat: tuple[HeatMap, ...] = ()
    device_busy: float | None = None
    """Mean over the devices and over the time in which ranks took steps."""
    device_power_w: float | None = None
    energy_wh: float | None = None
    energy_of: str = ""
    """The source of the energy figure: nodes, or only devices if no node reports its power."""


def measure(job: Job | None, head: HistoryHead | None, lines: Sequence[HistoryLine]) -> Measured:
    """The figures of a run from its last samples and its history. Either may be missing."""
    if head is None or not lines:
        return Measured()
    used = _thinned(head, lines)
    busy = _means(used, len(head.devices), lambda line, n: line.devices[n][0])
    worked = [device.worked for device in job.devices] if job else []
    energy, of = _energy(lines)
    return Measured(
        spans=tuple(_span(line) for line in used),
        heat=_heat_maps(head, used),
        device_busy=_first(_mean(worked), _mean(busy)),
        device_power_w=_mean(_means(used, len(head.devices), lambda line, n: line.devices[n][1])),
        energy_wh=energy,
        energy_of=of,
    )


def _thinned(head: HistoryHead, lines: Sequence[HistoryLine]) -> list[HistoryLine]:
    width = max(1, len(head.ranks) + len(head.devices) + len(head.hosts))
    most = max(8, min(MAX_SPANS, MAX_CELLS // width))
    step = math.ceil(len(lines) / most)
    return [line for line in lines[::step] if _fits(head, line)]


def _fits(head: HistoryHead, line: HistoryLine) -> bool:
    """Whether a line has the columns of its head. A line of a damaged or foreign file may have others."""
    return (len(line.nodes), len(line.devices), len(line.ranks)) == (
        len(head.hosts),
        len(head.devices),
        len(head.ranks),
    )


def _span(line: HistoryLine) -> Span:
    steps = sorted(row[0] for row in line.ranks if row[0] is not None)
    waits = [row[1] for row in line.ranks if row[1] is not None]
    comms = [row[2] for row in line.ranks if row[2] is not None]
    return Span(
        begin=line.begin,
        end=line.end,
        step_ms=statistics.median(steps) if steps else None,
        low_ms=steps[0] if steps else None,
        high_ms=steps[-1] if steps else None,
        wait_share=_mean(waits),
        comm_share=_mean(comms),
    )


def _heat_maps(head: HistoryHead, lines: Sequence[HistoryLine]) -> tuple[HeatMap, ...]:
    devices = [f"{_host(head, node)} {index}" for node, index in head.devices]
    made = [
        _heat("devices busy", "%", devices, lines, lambda line, n: _percent(line.devices[n][0])),
        _heat("power of devices", "W", devices, lines, lambda line, n: line.devices[n][1]),
        _heat("processors busy", "%", list(head.hosts), lines, lambda line, n: _percent(line.nodes[n][0])),
    ]
    return tuple(heat for heat in made if heat is not None)


def _heat(what: str, unit: str, names: Sequence[str], lines: Sequence[HistoryLine], value: Cell) -> HeatMap | None:
    groups = _groups(len(names), _HEAT_ROWS)
    columns = _groups(len(lines), _HEAT_COLUMNS)
    cells = tuple(
        tuple(
            _mean([v for n in range(*rows) for line in lines[slice(*span)] if (v := value(line, n)) is not None])
            for span in columns
        )
        for rows in groups
    )
    if not any(cell is not None for row in cells for cell in row):
        return None
    labels = tuple(names[a] if b - a == 1 else f"{names[a]} … {names[b - 1]}" for a, b in groups)
    return HeatMap(what=what, unit=unit, rows=labels, times=tuple(lines[a].begin for a, _ in columns), cells=cells)


def _groups(count: int, most: int) -> list[tuple[int, int]]:
    """Split `count` items into at most `most` groups of neighbours. Returns begin and end of each."""
    size = max(1, math.ceil(count / most))
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def _energy(lines: Sequence[HistoryLine]) -> tuple[float | None, str]:
    """Watt-hours of the nodes if all of them report their power, otherwise of the devices, or None."""
    for of, column in (("nodes", lambda line: [row[4] for row in line.nodes]), ("devices", _device_power)):
        total, any_seen = 0.0, False
        for line in lines:
            watts = [value for value in column(line) if value is not None]
            any_seen |= bool(watts)
            total += sum(watts) * max(0.0, line.end - line.begin) / _WH
        if any_seen:
            return total, of
    return None, ""


def _device_power(line: HistoryLine) -> list[float | None]:
    return [row[1] for row in line.devices]


def _host(head: HistoryHead, node: int) -> str:
    return head.hosts[node] if 0 <= node < len(head.hosts) else f"node {node}"


def _means(lines: Sequence[HistoryLine], count: int, value: Cell) -> list[float | None]:
    return [_mean([v for line in lines if (v := value(line, n)) is not None]) for n in range(count)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
