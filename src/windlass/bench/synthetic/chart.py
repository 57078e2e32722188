"""The chart of `bench synthetic`: the rate of every round."""

from __future__ import annotations

from windlass.base.pages.svg import Chart, line_chart, sample_series
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for row in record.rows:
        rates = row.samples["images_per_s_per_device"]
        mean = row.figures["images_per_s_per_device"].value
        chart = Chart(
            title="images per second and device, by round",
            x_name="round",
            y_name="images/s per device",
            series=(sample_series(str(row.labels["engine"]), rates),),
            ticks=tuple((float(number), str(number)) for number in range(len(rates))),
            level=(mean, f"mean {mean:,.1f}"),
        )
        made.append((f"{row.labels['model']}, batch {row.labels['batch']}: every round", line_chart(chart)))
    return made
