"""Output of nccl-tests (and rccl-tests) and of the oneCCL benchmark, read as records. Text, JSON (-J) and CSV (-o).

Their text does not always say which collective ran, nor over how many ranks. Both are taken from where they are said,
then from the ratio of busbw to algbw where only one answer fits, and asked for otherwise.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from windlass.bench.collectives.rows import bandwidths
from windlass.bench.measure import Figure
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
_NCCL_ROW = re.compile(
    r"\A\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)"
    r"\s+([\d.e+-]+)\s+([\d.e+-]+)\s+([\d.e+-]+)\s+(\d+(?:\.\d+)?(?:e[+-]?\d+)?|N/A)"
    r"(?:\s+([\d.e+-]+)\s+([\d.e+-]+)\s+([\d.e+-]+)\s+(\d+(?:\.\d+)?(?:e[+-]?\d+)?|N/A))?\s*\Z"
)
_NCCL_DEVICE = re.compile(r"#\s*Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_CCL_HEAD = re.compile(r"#bytes\s+(?:#?elem_count\s+)?#repetitions\s+t_min\[usec\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the person who imports says about a run; None where the text has to say it."""

    op: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    device: str | None = None


def looks_foreign(data: bytes) -> bool:
    """Whether this is output of a benchmark that can be read here, rather than a record."""
    text = data[:200_000].decode("utf-8", "replace")
    return (
        ("algbw" in text and "busbw" in text and "#wrong" in text)
        or _CCL_HEAD.search(text) is not None
        or text.startswith("#ranks,collective,")
        or ('"nccl_version"' in text and '"results"' in text)
    )


def parse_foreign(data: bytes, known: Known, *, where: str) -> BenchRecord:
    """The record of somebody else's benchmark. Raises where no result is in the text, or what it was cannot be told."""
    text = data.decode("utf-8", "replace")
    if text.startswith("#ranks,collective,"):
        return _oneccl_csv(text, known, where)
    if _CCL_HEAD.search(text):
        return _oneccl_text(text, known, where)
    if text.lstrip().startswith("{"):
        return _nccl_json(text, known, where)
    return _nccl_text(text, known, where)


def _nccl_text(text: str, known: Known, where: str) -> BenchRecord:
    lines = text.splitlines()
    found = [match for line in lines if (match := _NCCL_ROW.match(line))]
    if not found:
        raise ConfigError(f"{where}: no result line of nccl-tests in it", hint="did the program run to its table?")
    seats = {int(m[1]): (m[2], m[3].strip()) for line in lines if (m := _NCCL_DEVICE.match(line))}
    program = next((m[1] for line in lines if (m := re.search(r"Collective test starting: (\w+?)_perf", line))), None)
    ratios = [float(m[8]) / float(m[7]) for m in found if float(m[7]) > 1]
    op, ranks = _what(known, program, len(seats) or None, found[0][4], ratios, where)
    rows: list[Measurement] = []
    for match in found:
        size, count, kind, redop, root = int(match[1]), int(match[2]), match[3], match[4], int(match[5])
        for placement, at in (("out-of-place", 6), ("in-place", 10)):
            if match[at] is not None:
                told = {"bytes": size, "count": count, "type": kind, "redop": redop, "root": root, "op": op}
                rows.append(_row({**told, "placement": placement}, float(match[at]), match[at + 3], ranks, known.nodes))
    hosts = list(dict.fromkeys(host for host, _ in seats.values()))
    version = next((m[1] for line in lines if (m := re.search(r"NCCL version (\S+)", line))), None)
    device = known.device or next((name for _, name in seats.values() if name), "")
    return _record(rows, known, hosts, ranks, device, {"nccl": version} if version else {}, where)


def _nccl_json(text: str, known: Known, where: str) -> BenchRecord:
    try:
        raw = json.loads(text)
        results, devices = raw["results"], raw.get("devices") or raw.get("config", {}).get("devices") or []
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: not the JSON of nccl-tests (-J): {error}") from error
    name = str((raw.get("args") or [""])[0]) if isinstance(raw.get("args"), list) else ""
    program = next(iter(re.findall(r"(\w+?)_perf", name)), None)
    ratios = [r["out_of_place"]["bus_bw"] / r["out_of_place"]["alg_bw"] for r in results if r.get("out_of_place")]
    if not results:
        raise ConfigError(f"{where}: no result in it")
    op, ranks = _what(known, program, len(devices) or None, str(results[0]["redop"]), ratios, where)
    rows = []
    for one in results:
        for placement, key in (("out-of-place", "out_of_place"), ("in-place", "in_place")):
            half = one.get(key)
            if half:
                told = {"op": op, "bytes": one["size"], "count": one["count"], "type": one["type"]}
                told |= {"redop": one["redop"], "root": int(one["root"]), "placement": placement}
                rows.append(_row(told, float(half["time"]), str(half.get("nwrong", "N/A")), ranks, known.nodes))
    hosts = list(dict.fromkeys(str(device["hostname"]) for device in devices))
    device = known.device or next((str(d.get("device_info", "")) for d in devices), "")
    # The file holds the whole environment of the run; none of it is taken over.
    return _record(rows, known, hosts, ranks, device, {"nccl": str(raw.get("nccl_version", ""))}, where)


def _what(
    known: Known, program: str | None, devices: int | None, redop: str, ratios: list[float], where: str
) -> tuple[str, int]:
    """Op and number of ranks: said, else from the program's name and its devices, else from busbw / algbw."""
    op = known.op or (_PROGRAMS.get(program) if program else None)
    ranks = known.ranks or devices
    ratio = sorted(ratios)[len(ratios) // 2] if ratios else None
    if op is None and ratio is not None and ratio > 1.05 and redop != "none":
        op = "all_reduce"
    if op is None and ratio is not None and ratio < 0.995 and redop != "none":
        op = "reduce_scatter"
    if op is None:
        raise UsageError(f"{where} does not say which collective it measured", hint="add --op, such as --op all_gather")
    if ranks is None and ratio is not None and op not in {"broadcast", "reduce", "sendrecv"}:
        share = ratio / 2 if op == "all_reduce" else ratio
        if share < 0.998:
            ranks = round(1 / (1 - share))
    if ranks is None:
        raise UsageError(f"{where} does not say over how many ranks it ran", hint="add --ranks")
    return op, ranks


def _row(told: dict[str, Any], time_us: float, wrong: str, ranks: int, nodes: int | None) -> Measurement:
    """Bandwidths are computed anew from bytes and time, so that one formula holds for all records."""
    counted = None if wrong == "N/A" or not re.fullmatch(r"[\d.e+-]+", wrong) else int(float(wrong))
    return Measurement(
        labels={**told, "ranks": ranks, "nodes": nodes or 1},
        samples={"time_s": (time_us / 1e6,)},
        figures={
            "time": Figure(value=time_us, unit="us", formula="as printed by the program"),
            **bandwidths(str(told["op"]), int(told["bytes"]), time_us / 1e6, ranks),
        },
        wrong=counted,
    )


def _oneccl_text(text: str, known: Known, where: str) -> BenchRecord:
    """Tables of `benchmark`: time only, so the bandwidths are ours. Elements per rank for gathers and scatters."""
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
                raise UsageError(f"{where} does not say what it measured", hint="add --op and --ranks")
            size, count = int(fields[0]), int(fields[1]) if with_count else int(fields[0]) // 4
            average = float(fields[5 if with_count else 4])
            rows.append(_ccl_row(op, size, count, dtype, average, ranks, known.nodes))
    if not rows:
        raise ConfigError(f"{where}: no result line of the oneCCL benchmark in it")
    return _record(rows, known, [], int(ranks or 1), known.device or "", {"library": "oneCCL"}, where)


def _oneccl_csv(text: str, known: Known, where: str) -> BenchRecord:
    rows, ranks = [], 1
    for line in csv.DictReader(text.splitlines()):
        try:
            op = _CCL_OPS[line["collective"]]
            ranks = int(line["#ranks"])
            size, count = int(line["message_size"]), int(line["#elements/buffer"])
            rows.append(_ccl_row(op, size, count, line["dtype"], float(line["t_avg[usec]"]), ranks, known.nodes))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: a torn line in the oneCCL benchmark's CSV: {line}") from error
    if not rows:
        raise ConfigError(f"{where}: no result in the oneCCL benchmark's CSV")
    return _record(rows, known, [], ranks, known.device or "", {"library": "oneCCL"}, where)


def _ccl_row(op: str, size: int, count: int, dtype: str, time_us: float, ranks: int, nodes: int | None) -> Measurement:
    reduces, rooted = op in {"all_reduce", "reduce", "reduce_scatter"}, op in {"broadcast", "reduce"}
    told = {
        "op": op,
        "bytes": size * ranks if op in _PER_RANK else size,
        "count": count,
        "type": _TYPES.get(dtype, dtype),
        "redop": "sum" if reduces else "none",
        "root": 0 if rooted else -1,
        "placement": "out-of-place",
    }
    return _row(told, time_us, "N/A", ranks, nodes)


def _record(
    rows: list[Measurement],
    known: Known,
    hosts: list[str],
    ranks: int,
    device: str,
    software: dict[str, Any],
    where: str,
) -> BenchRecord:
    nodes = known.nodes or len(hosts) or 1
    rows = [msgspec.structs.replace(row, labels={**row.labels, "nodes": nodes}) for row in rows]
    return new_record(
        "collectives",
        where=Where(nodes=nodes, ranks_per_node=max(1, ranks // nodes), hosts=",".join(hosts)),
        device={"name": device} if device else {},
        software=software,
        rows=tuple(rows),
        imported_from=where,
    )
