"""`bench synthetic`: runs it, and makes its row: images/s per device, mean ± 1.96 σ over rounds, and in all."""

from __future__ import annotations

import math
import statistics

from windlass.bench.measure import Figure
from windlass.bench.options import to_argument
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.runner import Bench, Part, PartResult
from windlass.bench.synthetic.options import SyntheticOptions


def run(bench: Bench) -> BenchRecord:
    options = bench.options_as(SyntheticOptions)
    result = bench.run(part(options))
    rows = rows_of(result, options) if result else []
    return bench.record(rows, remarks=[remark for row in rows for remark in loss_remarks(row)])


def part(options: SyntheticOptions, name: str = "synthetic", **size: int | None) -> Part:
    return Part(name=name, program="synthetic", argument=to_argument(options), **size)


def rows_of(result: PartResult, options: SyntheticOptions) -> list[Measurement]:
    """The row of a run. The rate of a round is that of the first rank, as in Horovod's benchmark: all ranks wait for
    each other in every batch."""
    mine = [float(sent["seconds"]) for sent in result.of_kind("round") if sent["rank"] == 0]
    if not mine:
        return []
    ranks = result.plan.world_size
    rates = tuple(options.batch * options.batches / seconds for seconds in mine)
    mean, band = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    total = "rate per device * ranks"
    row = Measurement(
        labels={
            "model": options.model,
            "batch": options.batch,
            "engine": options.engine,
            "compression": "fp16" if options.fp16_allreduce else "fp32",
            "precision": "amp" if options.amp else "fp32",
            "ranks": ranks,
            "nodes": result.plan.nodes,
        },
        samples={
            "round_s": tuple(mine),
            "images_per_s_per_device": rates,
            "loss": tuple(float(sent["value"]) for sent in result.of_kind("loss")),
        },
        figures={
            "images_per_s_per_device": Figure(value=mean, unit="images/s", formula="mean over rounds"),
            "images_per_s_band": Figure(value=band, unit="images/s", formula="1.96*stdev over rounds"),
            "images_per_s_total": Figure(value=mean * ranks, unit="images/s", formula=total),
            "images_per_s_total_band": Figure(value=band * ranks, unit="images/s", formula=f"1.96*stdev, {total}"),
        },
    )
    return [row]


def loss_remarks(row: Measurement) -> list[str]:
    """The same batch again and again must be learned; a loss that is no number means that nothing was computed."""
    losses = row.samples.get("loss", ())
    if not all(math.isfinite(loss) for loss in losses):
        return ["the loss is not finite: the figures of this run must not be used"]
    return []
