"""Compare two records. A difference counts only if it is larger than the noise of both.

Noise is estimated from the samples by the median absolute deviation, which one outlier does not change. In addition,
four of five pairs of samples must agree on which run is faster. If a record has too few samples (imported tables have
one), the result states that and contains no guess.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from windlass.base.notation.counts import counted
from windlass.bench.record import BenchRecord, Label, Measurement
from windlass.node.sys.text import binary_size

_FEWEST = 4
_FLOOR = 0.01
"""None of these methods can distinguish differences below one per cent from chance."""
_SIGMAS = 2.0
_AGREE = 0.8
_HIGHER_IS_BETTER = {"images_per_s_per_device", "samples_per_s"}
# The measure that is compared: the first one in this order that both rows have.
_MEASURES = ("time_s", "step_s", "images_per_s_per_device", "sustained_s", "samples_per_s", "start_s", "push_s")

Word = Literal["faster", "slower", "same", "unsure"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One case in both records.

    `change` is how much faster B is than A (0.1: a tenth). `noise` is explained by chance.
    """

    labels: dict[str, Label]
    a: float
    b: float
    measure: str
    change: float
    noise: float | None
    word: Word


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All cases that both records have, the cases that only one has, and the other differences of the two runs."""

    differences: tuple[Difference, ...]
    only_a: int
    only_b: int
    unlike: tuple[str, ...]


def compare(a: BenchRecord, b: BenchRecord) -> Comparison:
    """Match rows by their labels: the same op, size and placement, the same model and number of ranks."""
    rows_a, rows_b = _keyed(a.rows), _keyed(b.rows)
    if a.case == b.case and len(rows_a) == len(rows_b) == 1 and rows_a.keys() != rows_b.keys():
        return _two_rows(a, b)
    both = [key for key in rows_a if key in rows_b]
    found = [one for key in both if (one := _difference(rows_a[key], rows_b[key])) is not None]
    return Comparison(
        differences=tuple(found),
        only_a=len(rows_a) - len(both),
        only_b=len(rows_b) - len(both),
        unlike=tuple(_unlike(a, b)),
    )


def _two_rows(a: BenchRecord, b: BenchRecord) -> Comparison:
    """Compare two runs of one row each, for example a model in two precisions, and list their differences."""
    one, two = a.rows[0].labels, b.rows[0].labels
    unlike = [f"{k}: {one.get(k, '-')} / {two.get(k, '-')}" for k in {**one, **two} if one.get(k) != two.get(k)]
    found = _difference(a.rows[0], b.rows[0])
    if found is not None:
        found = replace(found, labels={k: v for k, v in one.items() if two.get(k) == v})
    alike = one.get("model") == two.get("model")
    return Comparison(
        differences=(found,) if found is not None and alike else (),
        only_a=0 if found is not None and alike else 1,
        only_b=0 if found is not None and alike else 1,
        unlike=(*_unlike(a, b), *unlike),
    )


def _keyed(rows: Sequence[Measurement]) -> dict[tuple[tuple[str, Label], ...], Measurement]:
    return {tuple(sorted((k, v) for k, v in row.labels.items() if k != "count")): row for row in rows}


def _difference(a: Measurement, b: Measurement) -> Difference | None:
    name = next((m for m in _MEASURES if a.samples.get(m) and b.samples.get(m)), None)
    if name is None:
        return None
    one, two = statistics.median(a.samples[name]), statistics.median(b.samples[name])
    change = (two / one if name in _HIGHER_IS_BETTER else one / two) - 1
    noise = noise_of(a.samples[name], b.samples[name])
    word: Word
    if noise is None:
        word = "unsure"
    elif abs(math.log1p(change)) <= noise or not _apart(a.samples[name], b.samples[name]):
        word = "same"  # by the logarithm: twice as fast and half as fast are equally far from the same
    else:
        word = "faster" if change > 0 else "slower"
    return Difference(labels=a.labels, a=one, b=two, measure=name, change=change, noise=noise, word=word)


def noise_of(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the relative difference of two medians that chance explains, or None with too few samples."""
    if min(len(a), len(b)) < _FEWEST:
        return None
    return max(_FLOOR, _SIGMAS * math.hypot(_median_error(a), _median_error(b)))


def _apart(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether four of five pairs of samples, one of each run, agree on which run is faster.

    If a run has two speeds (another job comes and goes), medians jump between them, but this share does not.
    """
    ordered = sorted(b)
    below = sum((bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in a)
    share = below / (len(a) * len(b))
    return max(share, 1 - share) >= _AGREE


def _median_error(samples: Sequence[float]) -> float:
    """Relative standard error of the median: 1.2533 σ / √n, with σ from the median absolute deviation."""
    middle = statistics.median(samples)
    if middle == 0:
        return 0.0
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in samples)
    # Neighbouring samples share a clock, a temperature and the traffic of others, so n samples count as fewer.
    return deviation / abs(middle) * 1.2533 / math.sqrt(max(1.0, len(samples) / 4))


def _unlike(a: BenchRecord, b: BenchRecord) -> list[str]:
    """Return the differences besides the figures. A comparison of different things must show them."""
    pairs = [
        ("device", a.device.get("name"), b.device.get("name")),
        ("nodes", a.where.nodes, b.where.nodes),
        ("ranks per node", a.where.ranks_per_node, b.where.ranks_per_node),
        ("site", a.where.site, b.where.site),
        ("torch", a.software.get("torch"), b.software.get("torch")),
        ("nccl", a.software.get("nccl"), b.software.get("nccl")),
        ("container", a.where.container, b.where.container),
        ("windlass commit", a.commit, b.commit),
    ]
    lines = [f"{name}: {one} / {two}" for name, one, two in pairs if one != two]
    for name in sorted({*a.environment, *b.environment}):
        one, two = a.environment.get(name), b.environment.get(name)
        if one != two:
            lines.append(f"{name}: {'unset' if one is None else one} / {'unset' if two is None else two}")
    return lines


def label_text(labels: dict[str, Label]) -> str:
    """Return the name of a row for people."""
    if "op" in labels:
        return f"{labels['op']} {binary_size(float(labels['bytes'] or 0))} {labels['placement']}"
    words = [
        str(labels[key])
        for key in ("case", "model", "type", "format", "pass", "precision", "parallel", "engine")
        if key in labels
    ]
    if "label" in labels:
        words.append(str(labels["label"]))
    elif "ranks" in labels:
        words.append(counted(labels["ranks"], "rank"))
    if "nodes" in labels and int(labels["nodes"] or 1) > 1:
        words.append(f"{labels['nodes']} nodes")
    return " ".join(words)


def text(a: BenchRecord, b: BenchRecord, names: tuple[str, str]) -> str:
    found = compare(a, b)
    lines = [f"A: {a.title}  ({names[0]})", f"B: {b.title}  ({names[1]})"]
    lines += [f"differs: {line}" for line in found.unlike]
    lines += ["", f"{'case':<44} {'A':>12} {'B':>12}   {'B against A':>11}   {'noise':>6}"]
    for one in found.differences:
        noise = "?" if one.noise is None else f"{one.noise:.1%}"
        word = {"unsure": "too few samples to say", "same": "same"}.get(one.word, one.word)
        lines.append(
            f"{label_text(one.labels):<44} {value_text(one.measure, one.a):>12} {value_text(one.measure, one.b):>12}   "
            f"{one.change:>+11.1%}   {noise:>6}  {word}"
        )
    if found.only_a or found.only_b:
        lines.append(f"only in A: {found.only_a} rows; only in B: {found.only_b} rows")
    lines += ["", summary(found)]
    return "\n".join(lines)


def value_text(measure: str, value: float) -> str:
    if not measure.endswith("_s") or measure in _HIGHER_IS_BETTER:
        return f"{value:,.1f}/s"
    if value < 1e-3:
        return f"{value * 1e6:.1f} us"
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.3f} s"


def summary(found: Comparison) -> str:
    """Return one sentence about all differences."""
    if not found.differences:
        return "the two records have no case in common"
    count = {
        word: sum(one.word == word for one in found.differences) for word in ("faster", "slower", "same", "unsure")
    }
    parts = [f"{word} in {count[word]}" for word in ("faster", "slower") if count[word]]
    parts += [f"the same within noise in {count['same']}"] if count["same"] else []
    parts += [f"unknown in {count['unsure']} with too few samples"] if count["unsure"] else []
    return f"of {counted(len(found.differences), 'case')}, B is {', '.join(parts)}"
