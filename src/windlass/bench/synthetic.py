"""`bench synthetic`: images/s per device, mean ± 1.96 σ over rounds, and in all."""

from __future__ import annotations

import math
import statistics

from windlass.bench.records import BenchRecord, Figure, Row
from windlass.bench.runner import Outcome
from windlass.bench.sizes import counted


def row_of(
    outcome: Outcome, *, model: str, batch: int, batches: int, engine: str, compression: str, amp: bool
) -> Row | None:
    """The row of a run. The rate of a round is that of the first rank, as in Horovod's benchmark: all ranks wait for
    each other in every batch."""
    mine = [float(told["seconds"]) for told in outcome.of_kind("round") if told["rank"] == 0]
    if not mine:
        return None
    ranks = outcome.plan.world_size
    rates = tuple(batch * batches / seconds for seconds in mine)
    mean, band = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    total = "rate per device * ranks"
    return Row(
        labels={
            "model": model,
            "batch": batch,
            "engine": engine,
            "compression": compression,
            "precision": "amp" if amp else "fp32",
            "ranks": ranks,
            "nodes": outcome.plan.nodes,
        },
        samples={
            "round_s": tuple(mine),
            "images_per_s_per_device": rates,
            "loss": tuple(float(told["value"]) for told in outcome.of_kind("loss")),
        },
        figures={
            "images_per_s_per_device": Figure(value=mean, unit="images/s", formula="mean over rounds"),
            "images_per_s_band": Figure(value=band, unit="images/s", formula="1.96*stdev over rounds"),
            "images_per_s_total": Figure(value=mean * ranks, unit="images/s", formula=total),
            "images_per_s_total_band": Figure(value=band * ranks, unit="images/s", formula=f"1.96*stdev, {total}"),
        },
    )


def loss_remarks(row: Row) -> list[str]:
    """The same batch again and again must be learned; a loss that is no number means that nothing was computed."""
    losses = row.samples.get("loss", ())
    if not all(math.isfinite(loss) for loss in losses):
        return ["the loss is not finite: the figures of this run must not be used"]
    return []


def text(record: BenchRecord) -> str:
    """The words of Horovod's benchmark, so that old results and new ones can be laid side by side."""
    lines: list[str] = []
    for row in record.rows:
        label, figures = row.labels, row.figures
        amp = ", amp" if label.get("precision") == "amp" else ""
        lines += [
            f"Model: {label['model']} ({label['engine']}, gradients in {label['compression']}{amp})",
            f"Batch size: {label['batch']}",
            f"Number of devices: {label['ranks']} on {counted(label['nodes'], 'node')} "
            f"({record.device.get('name', '?')})",
        ]
        rates = row.samples["images_per_s_per_device"]
        lines += [f"Iter #{at}: {rate:.1f} img/sec per device" for at, rate in enumerate(rates)]
        each, band = figures["images_per_s_per_device"].value, figures["images_per_s_band"].value
        total, total_band = figures["images_per_s_total"].value, figures["images_per_s_total_band"].value
        lines += [
            f"Img/sec per device: {each:.1f} +-{band:.1f}",
            f"Total img/sec on {label['ranks']} device(s): {total:.1f} +-{total_band:.1f}",
        ]
    return "\n".join(lines)
