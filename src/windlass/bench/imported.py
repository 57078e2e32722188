"""Read text output of nccl-tests (and rccl-tests) and of the oneCCL benchmark as records.

The text does not always contain the collective or the number of ranks. Both are taken from the text if it has them.
Otherwise they are computed from the ratio of busbw to algbw if only one answer fits. Otherwise the user must give them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from windlass.bench.collectives.rows import bandwidths, wrong_remarks
from windlass.bench.measure import Figure
from windlass.bench.nccl_table import HEADING, Text, parse_text
from windlass.bench.record import BenchRecord, Measurement, Where, new_record
from windlass.errors import ConfigError, UsageError

_TYPES = {"float32": "float", "float16": "half", "float64": "double"}
_CCL_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "bcast": "broadcast",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
_PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
}
_PER_RANK = {"all_gather", "reduce_scatter", "all_to_all"}
_CCL_HEAD = re.compile(r"#bytes\s+(?:#?elem_count\s+)?#repetitions\s+t_min\[usec\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Facts about a run from the user who imports it. None means that the text must contain the value."""

    op: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    device: str | None = None


def looks_foreign(data: bytes) -> bool:
    """Whether this is output of a supported benchmark and not a record."""
    text = data.decode("utf-8", "replace")
    return HEADING.search(text) is not None or _CCL_HEAD.search(text) is not None


def parse_foreign(data: bytes, known: Known, *, where: str) -> BenchRecord:
    """Return the record of another benchmark. Raises if the text has no result or does not identify the measurement."""
    text = data.decode("utf-8", "replace")
    if _CCL_HEAD.search(text):
        return _oneccl_text(text, known, where)
    return _nccl_text(text, known, where)


def _nccl_text(text: str, known: Known, where: str) -> BenchRecord:
    found = parse_text(text, where)
    rows: list[Measurement] = []
    for table in found.tables:
        halves = [half for row in table.rows for half in row.halves]
        ratios = [half.busbw / half.algbw for half in halves if half.algbw > 1] or [
            half.busbw / half.algbw for half in halves if half.algbw > 0.1
        ]
        op, ranks = _what(known, table.program, len(found.seats) or None, table.rows[0].redop, ratios, where)
        for row in table.rows:
            told = {"op": op, "bytes": row.size_bytes, "count": row.count, "type": row.type}
            told |= {"redop": row.redop, "root": row.root}
            rows += [
                _row({**told, "placement": half.placement}, half.time_us, half.wrong, ranks, known.nodes)
                for half in row.halves
            ]
    return _record(rows, known, where, found)


def _first(options: str) -> str:
    return f"write a record with what is missing: windlass bench report FILE {options} --output RECORD.json"


def _what(
    known: Known, program: str | None, devices: int | None, redop: str, ratios: list[float], where: str
) -> tuple[str, int]:
    """Return op and number of ranks: as given, or from the program's name and devices, or from busbw / algbw."""
    op = known.op or (_PROGRAMS.get(program) if program else None)
    ranks = known.ranks or devices
    ratio = sorted(ratios)[len(ratios) // 2] if ratios else None
    if op is None and ratio is not None and ratio > 1.05 and redop != "none":
        op = "all_reduce"
    if op is None and ratio is not None and 0.4 < ratio < 0.995 and redop != "none":
        op = "reduce_scatter"
    if op is None:
        raise UsageError(
            f"{where} does not say which collective it measured",
            hint=_first("--op all_gather"),
        )
    if op not in _PROGRAMS.values():
        raise UsageError(f"--op {op}: no such collective", hint=f"one of {', '.join(_PROGRAMS.values())}")
    if ranks is None and ratio is not None and op not in {"broadcast", "reduce", "sendrecv"}:
        share = ratio / 2 if op == "all_reduce" else ratio
        if share < 0.998:
            ranks = round(1 / (1 - share))
    if ranks is None:
        raise UsageError(
            f"{where} does not say over how many ranks it ran",
            hint=_first("--ranks N"),
        )
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: at least 1", hint="give the number of ranks that were measured")
    return op, ranks


def _row(told: dict[str, Any], time_us: float, wrong: int | None, ranks: int, nodes: int | None) -> Measurement:
    """Make a row. Bandwidths are computed again from bytes and time, so that one formula holds for all records."""
    return Measurement(
        labels={**told, "ranks": ranks, "nodes": nodes or 1},
        samples={"time_s": (time_us / 1e6,)},
        figures=_figures(told, time_us, ranks, "as printed by the program"),
        wrong=wrong,
    )


def _figures(told: Mapping[str, Any], time_us: float, ranks: int, formula: str) -> dict[str, Figure]:
    return {
        "time": Figure(value=time_us, unit="us", formula=formula),
        **bandwidths(str(told["op"]), int(told["bytes"]), time_us / 1e6, ranks),
    }


def _together(rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """Merge rows of the same measurement (a program run several times, or its cycles) into one with several samples.

    `compare` needs several samples to distinguish a difference from noise.
    """
    same: dict[tuple[object, ...], list[Measurement]] = {}
    for row in rows:
        same.setdefault(tuple(row.labels.values()), []).append(row)
    for first, *others in same.values():
        if not others:
            yield first
            continue
        times = [row.samples["time_s"][0] for row in (first, *others)]
        wrong = [row.wrong for row in (first, *others) if row.wrong is not None]
        figures = _figures(first.labels, median(times) * 1e6, int(first.labels["ranks"] or 1), "median of the tables")
        yield Measurement(
            labels=first.labels,
            samples={"time_s": tuple(times)},
            figures=figures,
            wrong=sum(wrong) if wrong else None,
        )


def _oneccl_text(text: str, known: Known, where: str) -> BenchRecord:
    """Read tables of `benchmark`. They contain only times, so windlass computes the bandwidths.

    Element counts are per rank for gathers and scatters.
    """
    rows: list[Measurement] = []
    op, ranks, with_count = known.op, known.ranks, True
    dtype = next(
        (m[1].strip() for line in text.splitlines() if (m := re.search(r"datatypes?:\s+(\w+)", line))), "float32"
    )
    for line in text.splitlines():
        if match := re.search(r"# Benchmarking: (\w+)", line):
            op = known.op or _CCL_OPS.get(match[1])
        elif match := re.search(r"#processes: (\d+)", line):
            ranks = known.ranks or int(match[1])
        elif _CCL_HEAD.search(line):
            with_count = "elem_count" in line
        elif re.fullmatch(r"\s*\d+(\s+[\d.]+){4,}\s*", line):
            fields = line.split()
            if op is None or ranks is None:
                raise UsageError(
                    f"{where} does not say what it measured",
                    hint=_first("--op OP --ranks N"),
                )
            size, count = int(fields[0]), int(fields[1]) if with_count else int(fields[0]) // 4
            average = float(fields[5 if with_count else 4])
            told = _ccl_labels(op, size, count, dtype, ranks)
            rows.append(_row(told, average, None, ranks, known.nodes))
    if not rows:
        raise ConfigError(
            f"{where}: no result line of the oneCCL benchmark in it", hint="give its whole output, with the table"
        )
    return _record(rows, known, where, Text(tables=(), seats={}, library={"library": "oneCCL"}, cut=False))


def _ccl_labels(op: str, size: int, count: int, dtype: str, ranks: int) -> dict[str, Any]:
    reduces, rooted = op in {"all_reduce", "reduce", "reduce_scatter"}, op in {"broadcast", "reduce"}
    return {
        "op": op,
        "bytes": size * ranks if op in _PER_RANK else size,
        "count": count,
        "type": _TYPES.get(dtype, dtype),
        "redop": "sum" if reduces else "none",
        "root": 0 if rooted else -1,
        "placement": "out-of-place",
    }


def _record(rows: list[Measurement], known: Known, where: str, text: Text) -> BenchRecord:
    hosts = list(dict.fromkeys(host for host, _ in text.seats.values()))
    device = known.device or next((name for _, name in text.seats.values() if name), "")
    moved = [row for row in rows if row.labels["bytes"]]
    if not moved:
        raise ConfigError(f"{where}: every result is of 0 bytes", hint="measure larger sizes (-b, -e)")
    nodes = known.nodes or len(hosts) or 1
    moved = [msgspec.structs.replace(row, labels={**row.labels, "nodes": nodes}) for row in moved]
    together = tuple(_together(moved))
    ranks = max(int(row.labels["ranks"] or 1) for row in together)
    remarks = wrong_remarks(together)
    if ranks == 1:
        remarks.append("one rank: nothing crossed a link. Several processes need nccl-tests built with MPI=1")
    if text.cut:
        remarks.append("the program did not print its end: it was stopped, or the text was cut")
    return new_record(
        "collectives",
        complete=not text.cut,
        where=Where(nodes=nodes, ranks_per_node=max(1, ranks // nodes), hosts=",".join(hosts)),
        device={"name": device} if device else {},
        software=text.library,
        rows=together,
        skipped=("sizes of 0 bytes: nothing was moved",) if len(moved) < len(rows) else (),
        remarks=tuple(remarks),
        imported_from=where,
    )
