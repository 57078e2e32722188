"""Charts of training runs: step times and losses."""

from __future__ import annotations

from windlass.base.pages.svg import Chart, line_chart, sample_series
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for row in record.rows:
        steps = tuple(value * 1e3 for value in row.samples.get("step_s", ()))
        for name, unit, values in (("step time", "ms", steps), ("loss", "loss", row.samples.get("loss", ()))):
            chart = Chart(
                title=f"{row.labels.get('model')}: {name}",
                x_name="sample" if name == "step time" else "step",
                y_name=f"{name} ({unit})" if unit != name else name,
                series=(sample_series(name, values),),
                ticks=tuple((float(number), str(number)) for number in range(0, len(values), max(1, len(values) // 8))),
                y_from_zero=name != "loss",
            )
            made.append((f"{row.labels.get('model')} {row.labels.get('precision')}: {name}", line_chart(chart)))
    return made
