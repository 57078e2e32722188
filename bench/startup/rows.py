"""Make the record of `bench/start.py`: results by case and number of nodes, and the cases that were not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.base.notation.counts import counted
from windlass.bench.measure import Figure
from windlass.bench.record import BenchRecord, Measurement, Where, new_record

STAGE = "stage "
_LABELS = ("case", "nodes", "ranks", "bytes", "latency_ms", "calls_per_s", "bytes_per_s")
# Figures by their name in the rows of `--json`: unit and formula.
_FIGURES = {
    "seconds": ("s", "median of the samples"),
    "ready_seconds": ("s", "median; agents up and files staged, before the ranks"),
    "shared_calls": ("calls", "median; what the shared file system saw"),
    "shared_bytes": ("bytes", "median; what the shared file system sent"),
    "agent_calls": ("calls", "median; of shared_calls, before the first rank started"),
    "shared_cpu_s": ("s", "median; processor time of the measurement's own file system for shared_calls"),
    "rate": ("B/s", "bytes / seconds"),
    "link_share": ("share", "rate / the link's rate"),
    "hop_rate": ("B/s", "bytes x (nodes - 1) / seconds"),
    "of_raw": ("share", "hop_rate / that of the plain copy"),
    "cpu_seconds": (
        "s",
        "median; all agents with their start, or all of Slurm meanwhile",
    ),
}


def start_record(
    rows: Sequence[Mapping[str, Any]], *, options: Mapping[str, Any], machine: Mapping[str, Any], **values: Any
) -> BenchRecord:
    """Return the record of rows in the format of `--json`. Rows that were not measured are listed as skipped."""
    measured = tuple(measurement(row) for row in rows if row["seconds"] is not None)
    missing = [row for row in rows if row["seconds"] is None]
    nodes = max((int(row["nodes"]) for row in rows), default=1)
    ranks = max((int(row["ranks"]) // int(row["nodes"]) for row in rows), default=1)
    return new_record(
        "start",
        where=Where(nodes=nodes, ranks_per_node=ranks),
        device={"kind": "cpu", "name": "CPU"} | dict(machine),
        options=dict(options),
        rows=measured,
        skipped=tuple(f"{row['case']} on {counted(row['nodes'], 'node')}: {row['not_measured']}" for row in missing),
        remarks=(f"all nodes were on one machine of {machine.get('cpus', '?')} CPUs",),
        **values,
    )


def measurement(row: Mapping[str, Any]) -> Measurement:
    """Return a row of `--json` as a row of a record."""
    labels = {name: row[name] for name in _LABELS if name in row}
    return Measurement(
        labels=labels,
        samples={"push_s" if "bytes" in row else "start_s": tuple(row["samples"])},
        figures={
            name: Figure(value=float(row[name]), unit=unit, formula=formula)
            for name, (unit, formula) in _FIGURES.items()
            if row.get(name) is not None
        }
        | _stage_figures(row.get("costs") or {}),
    )


def _stage_figures(costs: Mapping[str, Sequence[float]]) -> dict[str, Figure]:
    """Return seconds of each stage and CPU seconds of each kind of thread. The formula has their calls and switches."""
    found = {}
    for name, (calls, seconds) in costs.items():
        counted_as = "switches" if " thread " in name else "calls"
        found[f"{STAGE}{name}"] = Figure(value=seconds, unit="s", formula=f"mean of the rounds; {calls:g} {counted_as}")
    return found
