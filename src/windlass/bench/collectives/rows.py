"""`bench collectives`: runs it, and makes rows from what the first rank sent."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, cast

from windlass.bench import measure
from windlass.bench.collectives.options import CollectivesOptions
from windlass.bench.measure import Figure
from windlass.bench.options import to_argument
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.runner import Bench, Part, PartResult


def run(bench: Bench) -> BenchRecord:
    options = bench.options_as(CollectivesOptions)
    result = bench.run(part(options))
    rows = rows_of(result, options) if result else []
    return bench.record(rows, remarks=wrong_remarks(rows))


def part(options: CollectivesOptions, name: str = "collectives", **size: int | None) -> Part:
    return Part(name=name, program="collectives", argument=to_argument(options), **size)


def rows_of(result: PartResult, options: CollectivesOptions) -> list[Measurement]:
    return [measurement(sent, result.plan.world_size, result.plan.nodes) for sent in result.of_kind("row")]


def measurement(sent: dict[str, Any], ranks: int, nodes: int) -> Measurement:
    """A row of the record from a rank's message. The time is the mean over iterations and ranks, as nccl-tests has
    it; the samples are means over ranks."""
    mean = statistics.fmean(sent["time_s"])
    labels = {name: sent[name] for name in ("op", "bytes", "count", "type", "redop", "root", "placement")}
    return Measurement(
        labels={**labels, "ranks": ranks, "nodes": nodes},
        samples={"time_s": tuple(sent["time_s"])},
        figures={
            "time": Figure(value=mean * 1e6, unit="us", formula="mean over iterations and ranks"),
            **bandwidths(sent["op"], sent["bytes"], mean, ranks),
        },
        wrong=sent["wrong"],
    )


def bandwidths(op: str, size_bytes: int, time_s: float, ranks: int) -> dict[str, Figure]:
    """algbw and busbw of one measurement. With one rank nothing crosses a link: busbw is then 0, as in nccl-tests."""
    named = cast("measure.Collective", "alltoall" if op == "all_to_all" else op)
    return {
        "algbw": measure.algbw(size_bytes, time_s),
        "busbw": measure.busbw(named, size_bytes, time_s, ranks),
    }


def wrong_remarks(rows: Iterable[Measurement]) -> list[str]:
    """Words for results that are not right: bandwidth of wrong numbers is worth nothing."""
    return [
        f"{row.labels['op']} of {row.labels['bytes']} bytes {row.labels['placement']}: {row.wrong} wrong elements"
        for row in rows
        if row.wrong
    ]
