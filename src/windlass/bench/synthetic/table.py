"""The text of `bench synthetic`."""

from __future__ import annotations

from windlass.base.notation.counts import counted
from windlass.bench.record import BenchRecord


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
        lines += [f"Iter #{number}: {rate:.1f} img/sec per device" for number, rate in enumerate(rates)]
        each, band = figures["images_per_s_per_device"].value, figures["images_per_s_band"].value
        total, total_band = figures["images_per_s_total"].value, figures["images_per_s_total_band"].value
        lines += [
            f"Img/sec per device: {each:.1f} +-{band:.1f}",
            f"Total img/sec on {label['ranks']} device(s): {total:.1f} +-{total_band:.1f}",
        ]
    return "\n".join(lines)
