"""`bench ddp`: the sweep from one device without DDP to all nodes, and its table of percentiles.

The method is that of PyTorch's own DDP benchmark (which insists on eight GPUs per node): five warm-up and ten measured
iterations, samples of all ranks together, percentiles of the time per iteration and of the examples per second that
each device gets done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.bench import measure
from windlass.bench.records import BenchRecord, Row

PERCENTILES = (50, 75, 90, 95)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One size of the sweep."""

    label: str
    nodes: int
    ranks_per_node: int
    ddp: bool


def sweep(nodes: int, ranks_per_node: int) -> tuple[Step, ...]:
    """No DDP, then 1, 2, 4, … ranks of one node, then 2, 4, … nodes; the full size is always in it."""
    steps = [Step(label="no ddp", nodes=1, ranks_per_node=1, ddp=False)]
    steps += [
        Step(label=f"1M/{ranks}G", nodes=1, ranks_per_node=ranks, ddp=True) for ranks in doubled(1, ranks_per_node)
    ]
    steps += [
        Step(label=f"{count}M/{count * ranks_per_node}G", nodes=count, ranks_per_node=ranks_per_node, ddp=True)
        for count in doubled(2, nodes)
    ]
    return tuple(steps)


def doubled(first: int, last: int) -> list[int]:
    """first, 2·first, … and `last` itself; nothing where `last` is smaller."""
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last] if last >= first or found else []


def table_lines(rows: Sequence[Row]) -> list[str]:
    """A line per size: percentiles of seconds per iteration and examples per second of one device, and what is left of
    the rate without DDP."""
    alone = next((row for row in rows if row.labels.get("label") == "no ddp"), None)
    lines = [" " * 22 + "".join(f"      {'sec/iter':>8}    {'ex/sec':>6}" for _ in PERCENTILES) + "      left"]
    for row in rows:
        batch = float(row.labels["batch"] or 0)
        cells = ""
        for percent in PERCENTILES:
            seconds = measure.percentile(row.samples["step_s"], percent)
            rate = batch / seconds
            cells += f"  p{percent}: {seconds:6.3f}s  {rate:6.{0 if rate >= 100 else 1}f}/s"
        left = ""
        if alone is not None:
            share = measure.percentile(alone.samples["step_s"], 50) / measure.percentile(row.samples["step_s"], 50)
            left = f"  {share:7.1%}"
        lines.append(f"{row.labels['ranks']:>4} ranks -- {row.labels['label']!s:>8}:{cells}{left}")
    return lines


def text(record: BenchRecord) -> str:
    lines: list[str] = []
    for model in dict.fromkeys(str(row.labels["model"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["model"] == model]
        first = rows[0].labels
        lines += [
            "",
            f"Benchmark: {model} with batch size {first['batch']} ({first['precision']}, "
            f"{record.device.get('name', 'unknown device')})",
            "",
            *table_lines(rows),
        ]
    return "\n".join(lines).lstrip("\n")
