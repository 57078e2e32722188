"""`bench ddp`: the sweep from one device without DDP to all nodes.

The method is that of PyTorch's own DDP benchmark (which insists on eight GPUs per node): five warm-up and ten measured
iterations, samples of all ranks together, percentiles of the time per iteration and of the examples per second that
each device gets done.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.bench.ddp.options import DdpOptions
from windlass.bench.options import to_argument
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.runner import Bench, Part, PartResult
from windlass.bench.train.rows import loss_remarks, row_of


def run(bench: Bench) -> BenchRecord:
    options = bench.options_as(DdpOptions)
    rows: list[Measurement] = []
    sizes = sweep(*bench.size())
    for model, step in ((model, step) for model in options.models for step in sizes):
        name = f"{model}-{step.label.replace(' ', '-').replace('/', '-')}"
        size = {"nodes": step.nodes, "ranks_per_node": step.ranks_per_node}
        result = bench.run(part(options, name, model=model, parallel=step.ddp, **size), alone=False)
        row = row_of(result, label=step.label) if result else None
        rows += [row] if row else []
        if bench.interrupted:
            break
    # Ten steps need not lower a loss; that it is a number they must.
    return bench.record(rows, remarks=loss_remarks(bench.results, must_fall=False))


def part(
    options: DdpOptions, name: str, *, model: str | None = None, parallel: bool = True, **size: int | None
) -> Part:
    step = options.step(model or options.models[0], parallel=parallel)
    return Part(name=name, program="train", argument=to_argument(step, case="resnet"), **size)


def rows_of(result: PartResult, options: DdpOptions) -> list[Measurement]:
    row = row_of(result)
    return [row] if row else []


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
