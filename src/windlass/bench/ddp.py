"""What DDP costs, from one device to all nodes: percentiles of the time per iteration and of the examples per second.

The method is that of the published tables: fp32 with TF32 convolutions, eager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windlass.base.pages.svg import Bar, Chart, Series, bar_chart, line_chart
from windlass.bench import measure
from windlass.bench.options import option, to_argument
from windlass.bench.record import BenchRecord, Measurement
from windlass.bench.reference import References
from windlass.bench.runner import Bench, Part, PartResult
from windlass.bench.train.options import Precision, ResNetOptions
from windlass.bench.train.rows import loss_remarks, row_of
from windlass.errors import UsageError

_SAME = ("batch", "image", "steps", "warmup", "precision", "tf32", "device")
"""Options that the step of one model has too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DdpOptions:
    """The models, the batch and the method. Rejects invalid values before anything starts."""

    model: str = option("resnet50", "resnet50,resnet101 (default: resnet50)", metavar="LIST")
    batch: int = option(32, "images per device (default 32)")
    image: int = option(224, "side of the images in pixels")
    steps: int = 10
    warmup: int = 5
    precision: Precision = option("fp32", "default: fp32", choices=("fp32", "bf16"))
    tf32: bool | None = option(None, "default: yes, as the published tables")
    fp16_allreduce: bool = option(False, "send gradients as fp16, as in Horovod's benchmark")
    device: Literal["cuda", "xpu", "cpu"] | None = None

    def __post_init__(self) -> None:
        if min(self.batch, self.steps) < 1 or self.warmup < 0:
            raise UsageError(
                "--batch and --steps must be 1 or more, --warmup 0 or more",
                hint="leave an option out to use its default",
            )
        for model in self.models:
            self.step(model, parallel=True)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.model.split(",") if name.strip())

    def step(self, model: str, *, parallel: bool) -> ResNetOptions:
        """Return the training step of one model, with DDP or without."""
        return ResNetOptions(
            model=model,
            parallel="ddp" if parallel else "none",
            fp16_allreduce=self.fp16_allreduce and parallel,
            **{name: getattr(self, name) for name in _SAME},
        )


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
    # Ten steps need not lower a loss, but the loss must be finite.
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
    """Return no DDP, then 1, 2, 4, … ranks of one node, then 2, 4, … nodes. The full size is always included."""
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
    """Return first, 2·first, … and `last` itself, or an empty list if `last` is smaller."""
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last] if last >= first or found else []


PERCENTILES = (50, 75, 90, 95)


def table_lines(rows: Sequence[Measurement]) -> list[str]:
    """Return a line per size: percentiles of seconds per iteration and of examples per second of one device.

    The last column is the remaining share of the rate without DDP.
    """
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


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    made = []
    for model in dict.fromkeys(str(row.labels["model"]) for row in record.rows):
        rows = [row for row in record.rows if row.labels["model"] == model]
        alone = next((row for row in rows if row.labels["parallel"] == "none"), None)
        spread = [row for row in rows if row.labels["parallel"] != "none"]
        if not spread:
            continue
        if len(spread) == 1:  # one point is not a curve
            made.append((f"{model}: examples per second and device, median", _ddp_bars(model, rows)))
            continue
        lines = []
        for percent in (50, 95):
            points = [
                (float(r.labels["ranks"] or 1), _batch(r) / measure.percentile(r.samples["step_s"], percent))
                for r in spread
            ]
            lines.append(Series(name=f"p{percent}", points=tuple(points)))
        level = None
        if alone is not None:
            rate = _batch(alone) / measure.percentile(alone.samples["step_s"], 50)
            level = (rate, f"no ddp: {rate:,.0f}")
        chart = Chart(
            title=f"{model}: examples per second and device by ranks",
            x_name="ranks",
            y_name="ex/s per device",
            series=tuple(lines),
            ticks=tuple((float(r.labels["ranks"] or 1), str(r.labels["ranks"])) for r in spread),
            x_scale="log",
            level=level,
        )
        made.append((f"{model}: share of one device's rate, by number of ranks", line_chart(chart)))
    return made


def _ddp_bars(model: str, rows: Sequence[Measurement]) -> str:
    rates = [(str(row.labels["label"]), _batch(row) / measure.percentile(row.samples["step_s"], 50)) for row in rows]
    bars = [Bar(name=name, value=rate, text=f"{rate:,.0f}") for name, rate in rates]
    return bar_chart(f"{model}: examples per second and device", "ex/s", bars)


def _batch(row: Measurement) -> float:
    return float(row.labels["batch"] or 0)
