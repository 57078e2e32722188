"""What the samplers of a run say about the whole of it: spans of time, ranks, devices, energy. Pure.

Everything here may be missing: None is "not measured", never 0. Ten thousand ranks are folded: rows of a heat map are
groups of devices or nodes, and a long history is thinned before it is looked at.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from windlass.diagnose.watch.job import HistoryHead, HistoryLine, Job
from windlass.diagnose.watch.rules import slow_ranks
from windlass.diagnose.watch.thresholds import is_full, is_idle

MAX_CELLS = 2_000_000
"""Values of ranks and devices that are looked at; more of them, and only every second, third… line is."""
MAX_SPANS = 240
_HEAT_ROWS, _HEAT_COLUMNS = 48, 96
_WH = 3600.0
_PARTS, _GROWN, _GROWN_BYTES = 6, 1.1, 256 << 20
Cell = Callable[[HistoryLine, int], "float | None"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time: over the ranks, the median step and its range, and means of the shares."""

    begin: float
    end: float
    step_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None
    slow_ranks: tuple[int, ...] = ()
    """Ranks that need clearly longer than the others by themselves, not counting what they wait for them."""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank over the whole run."""

    rank: int
    host: str
    steps: int = 0
    step_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None
    cpu: float | None = None
    alloc_retries: int | None = None


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """A value per group of rows and span of time; None where nobody measured."""

    what: str
    unit: str
    rows: tuple[str, ...]
    times: tuple[float, ...]
    cells: tuple[tuple[float | None, ...], ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    spans: tuple[Span, ...] = ()
    ranks: tuple[RankSummary, ...] = ()
    heat: tuple[HeatMap, ...] = ()
    first_step_at: float | None = None
    device_busy: float | None = None
    """Mean over devices and time."""
    device_power_w: float | None = None
    idle_devices: tuple[str, ...] = ()
    throttled_devices: tuple[str, ...] = ()
    full_nodes: tuple[str, ...] = ()
    """Nodes whose memory came near its limit."""
    growing: tuple[str, float] | None = None
    """The node whose memory grew most, all the time, and by how many bytes a second."""
    devices: int = 0
    energy_wh: float | None = None
    energy_of: str = ""
    """What the energy is of: nodes, or devices alone where no node tells its power."""
    notes: tuple[str, ...] = ()


def measure(job: Job | None, head: HistoryHead | None, lines: Sequence[HistoryLine]) -> Measured:
    """The figures of a run from its last samples and its history; either may be missing."""
    if head is None or not lines:
        return Measured(ranks=_rank_summaries(job, {}), notes=_notes(job), throttled_devices=_throttled(job))
    used = _thinned(head, lines)
    spans = tuple(_span(head, line) for line in used)
    per_rank = {rank: _of_rank(used, column) for column, rank in enumerate(head.ranks)}
    busy = _means(used, len(head.devices), lambda line, n: line.devices[n][0])
    stepping = [line for line in used if any(row[0] is not None for row in line.ranks)]  # the start is no idleness
    worked = _means(stepping, len(head.devices), lambda line, n: line.devices[n][0])
    energy, of = _energy(head, lines)
    return Measured(
        spans=spans,
        ranks=_rank_summaries(job, per_rank),
        heat=_heat_maps(head, used),
        first_step_at=next((span.begin for span in spans if span.step_ms is not None), None),
        device_busy=_mean(busy),
        device_power_w=_mean(_means(used, len(head.devices), lambda line, n: line.devices[n][1])),
        idle_devices=_idle(head, worked),
        growing=_growing(head, stepping),
        devices=len(head.devices),
        throttled_devices=_throttled(job),
        full_nodes=_full_nodes(job),
        energy_wh=energy,
        energy_of=of,
        notes=_notes(job),
    )


def _thinned(head: HistoryHead, lines: Sequence[HistoryLine]) -> list[HistoryLine]:
    width = max(1, len(head.ranks) + len(head.devices) + len(head.hosts))
    most = max(8, min(MAX_SPANS, MAX_CELLS // width))
    step = math.ceil(len(lines) / most)
    return [line for line in lines[::step] if _fits(head, line)]


def _fits(head: HistoryHead, line: HistoryLine) -> bool:
    """A line of a torn or foreign file may have other columns than its head says."""
    return (len(line.nodes), len(line.devices), len(line.ranks)) == (
        len(head.hosts),
        len(head.devices),
        len(head.ranks),
    )


def _span(head: HistoryHead, line: HistoryLine) -> Span:
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
        slow_ranks=_slow_ranks(head, line),
    )


def _slow_ranks(head: HistoryHead, line: HistoryLine) -> tuple[int, ...]:
    """Ranks of one world step together, so that a slow one shows where nobody waits for it: its own part of the step,
    without what it waits in collectives, is the longest."""
    rows = zip(head.ranks, line.ranks, strict=True)
    return slow_ranks({rank: row[0] * (1 - (row[2] or 0.0)) for rank, row in rows if row[0] is not None})


def _of_rank(
    lines: Sequence[HistoryLine], column: int
) -> tuple[float | None, float | None, float | None, float | None]:
    rows = [line.ranks[column] for line in lines]
    step, wait, comm, cpu = (_mean([row[n] for row in rows if row[n] is not None]) for n in range(4))
    return step, wait, comm, cpu


def _rank_summaries(
    job: Job | None, seen: dict[int, tuple[float | None, float | None, float | None, float | None]]
) -> tuple[RankSummary, ...]:
    if job is None:
        return tuple(
            RankSummary(rank=rank, host="", step_ms=s, median_ms=s, wait_share=w, comm_share=c, cpu=u)
            for rank, (s, w, c, u) in sorted(seen.items())
        )
    found = []
    for row in job.ranks:
        step, wait, comm, cpu = seen.get(row.rank, (None, None, None, None))
        found.append(
            RankSummary(
                rank=row.rank,
                host=job.nodes[row.node].host if row.node < len(job.nodes) else "",
                steps=row.steps,
                step_ms=_first(row.all_ms, step),
                median_ms=_first(row.step_ms, step),
                p95_ms=row.p95_ms,
                wait_share=_first(row.all_wait_share, wait, row.wait_share),
                comm_share=_first(comm, row.comm_share),
                cpu=_first(cpu, row.cpu),
                alloc_retries=row.alloc_retries,
            )
        )
    return tuple(found)


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
    """`count` things in at most `most` groups of neighbours: begin and end of each."""
    size = max(1, math.ceil(count / most))
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def _growing(head: HistoryHead, lines: Sequence[HistoryLine]) -> tuple[str, float] | None:
    """Memory that a model needs is there after its first steps. One that still grows from each sixth of the rest to
    the next, by more than a tenth in all, is leaking."""
    size = len(lines) // (_PARTS + 1)
    if size < 1:
        return None
    found = []
    for node, host in enumerate(head.hosts):
        parts = [lines[n * size : (n + 1) * size] for n in range(1, _PARTS + 1)]
        means = [_mean([line.nodes[node][1] for line in part]) for part in parts]
        known = [value for value in means if value]
        if len(known) == _PARTS and all(a < b for a, b in itertools.pairwise(known)):
            seconds = parts[-1][-1].end - parts[0][0].begin
            if known[-1] > _GROWN * known[0] and known[-1] - known[0] >= _GROWN_BYTES and seconds > 0:
                found.append((host, (known[-1] - known[0]) / seconds))
    return max(found, key=lambda pair: pair[1], default=None)


def _idle(head: HistoryHead, busy: Sequence[float | None]) -> tuple[str, ...]:
    """Devices that did next to nothing while ranks took steps."""
    return tuple(
        f"{_host(head, node)} {index}"
        for (node, index), value in zip(head.devices, busy, strict=True)
        if value is not None and is_idle(value)
    )


def _energy(head: HistoryHead, lines: Sequence[HistoryLine]) -> tuple[float | None, str]:
    """Watt-hours of the nodes where all of them tell their power, else of the devices; None where nobody does."""
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


def _full_nodes(job: Job | None) -> tuple[str, ...]:
    return tuple(
        node.host for node in (job.nodes if job else ()) if is_full(node.memory_bytes, node.memory_limit_bytes)
    )


def _throttled(job: Job | None) -> tuple[str, ...]:
    if job is None:
        return ()
    return tuple(f"{job.nodes[d.node].host} {d.index}" for d in job.devices if d.throttled and d.node < len(job.nodes))


def _notes(job: Job | None) -> tuple[str, ...]:
    return tuple(f"{note.text} ({note.nodes})" for note in job.notes) if job else ()


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
