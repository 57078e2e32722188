"""The tables and charts of records of the repository's `bench/start.py`: imports by case and nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windlass.base.notation.counts import counted
from windlass.base.pages.svg import Bar, bar_chart
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References

# Heading, figure, and format. A figure that no row has gets no column.
_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("before", "ready_seconds", "{:.2f}".format),
    ("shared calls", "shared_calls", "{:,.0f}".format),
    ("by agents", "agent_calls", lambda value: f"{value:,.0f}" if value else ""),
    ("shared MB", "shared_bytes", lambda value: f"{value / 1e6:,.1f}"),
    ("MB/s a node", "rate", lambda value: f"{value / 1e6:,.1f}"),
    ("of the link", "link_share", "{:.2f}".format),
    ("MB/s all hops", "hop_rate", lambda value: f"{value / 1e6:,.1f}"),
    ("of raw", "of_raw", "{:.2f}".format),
    ("CPU s", "cpu_seconds", "{:.1f}".format),
)

_LIMITS = ("latency_ms", "calls_per_s", "bytes_per_s")
"""Labels of the rows of `bench/start_curves.py`."""


def is_push(row: Measurement) -> bool:
    return "push_s" in row.samples


def text(record: BenchRecord) -> str:
    """Return a line for each case and number of nodes: the median, the whole range, and the costs."""
    columns = [column for column in _COLUMNS if any(column[1] in row.figures for row in record.rows)]
    body = [("case", "nodes", "ranks", "seconds", "range", *(heading for heading, _, _ in columns))]
    for row in record.rows:
        (samples,) = row.samples.values()
        cells = (shown(row.figures[name].value) if name in row.figures else "" for _, name, shown in columns)
        seconds = f"{row.figures['seconds'].value:.2f}"
        case = " ".join((str(row.labels["case"]), *(f"{n}={row.labels[n]:g}" for n in _LIMITS if row.labels.get(n))))
        names = (str(row.labels["nodes"]), str(row.labels["ranks"]))
        body.append((case, *names, seconds, f"{min(samples):.2f}-{max(samples):.2f}", *cells))
    return _aligned(body)


def _aligned(body: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    lines = []
    for cells in body:
        first, *rest = cells
        padded = (f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join((first.ljust(widths[0]), *padded)).rstrip())
    return "\n".join(lines)


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    bars = [
        Bar(
            name=f"{row.labels['case']}, {counted(row.labels['nodes'], 'node')}",
            value=row.figures["seconds"].value,
            text=f"{row.figures['seconds'].value:.2f}",
        )
        for row in record.rows
    ]
    what = "the last node has the file" if bars and is_push(record.rows[0]) else "the last rank has imported"
    return [(f"seconds until {what}, median", bar_chart("start", "s", bars))]
