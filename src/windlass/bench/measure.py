"""The formulas of every derived figure, each with the name that is printed next to it. Pure: no torch, no I/O.

Two tools that print "MFU 45 %" may mean figures 12 % apart, and "bandwidth" has two meanings in collectives. So a
derived value is never a bare float here. It is a `Figure`, which contains the name of its formula and its unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windlass.errors import UsageError

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "gather", "scatter", "broadcast", "reduce", "sendrecv"
]

# The share of the algorithm's bytes that the busiest link must carry, as nccl-tests defines it.
_BUS_FACTOR_OF_N: dict[str, str] = {
    "all_reduce": "2(n-1)/n",
    "all_gather": "(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "alltoall": "(n-1)/n",
    "gather": "(n-1)/n",
    "scatter": "(n-1)/n",
    "broadcast": "1",
    "reduce": "1",
    "sendrecv": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A derived value with its formula."""

    value: float
    unit: str
    formula: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Statistics of the samples. `cv` is the standard deviation over the mean."""

    n: int
    mean: float
    median: float
    low: float
    high: float
    p75: float
    p90: float
    p95: float
    stdev: float
    cv: float


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the samples are, with linear interpolation between neighbours."""
    if not samples:
        raise UsageError("a percentile of no samples", hint="measure at least one step")
    if not 0 <= percent <= 100:
        raise UsageError(f"percentile {percent} is outside 0..100", hint="give one from 0 to 100")
    ordered = sorted(samples)
    index = (len(ordered) - 1) * percent / 100
    below = math.floor(index)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (index - below)


def spread(samples: Sequence[float]) -> Spread:
    """Return median, percentiles and deviation of the samples. Raises an error without samples."""
    if not samples:
        raise UsageError("the spread of no samples", hint="measure at least one step")
    mean = statistics.fmean(samples)
    stdev = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return Spread(
        n=len(samples),
        mean=mean,
        median=percentile(samples, 50),
        low=min(samples),
        high=max(samples),
        p75=percentile(samples, 75),
        p90=percentile(samples, 90),
        p95=percentile(samples, 95),
        stdev=stdev,
        cv=stdev / mean if mean else 0.0,
    )


def bus_factor(op: Collective, ranks: int) -> float:
    """Return busbw / algbw of a collective over `ranks`, as nccl-tests defines it."""
    if op not in _BUS_FACTOR_OF_N:
        raise UsageError(f"no bus factor for {op!r}", hint=f"known: {', '.join(sorted(_BUS_FACTOR_OF_N))}")
    if ranks < 1:
        raise UsageError(f"{op} over {ranks} ranks", hint="ranks must be at least 1")
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if _BUS_FACTOR_OF_N[op] == "1" else (ranks - 1) / ranks


def algbw(size_bytes: int, time_s: float) -> Figure:
    """Return bytes over time. `size_bytes` is the total of all ranks for all_gather and similar collectives."""
    _positive("time", time_s)
    return Figure(value=size_bytes / time_s / 1e9, unit="GB/s", formula="algbw = bytes/s")


def busbw(op: Collective, size_bytes: int, time_s: float, ranks: int) -> Figure:
    """Return the bandwidth of the links, which is comparable between numbers of ranks."""
    factor = bus_factor(op, ranks)
    value = algbw(size_bytes, time_s).value * factor
    return Figure(value=value, unit="GB/s", formula=f"busbw = algbw*{_BUS_FACTOR_OF_N[op]}")


def flops_6n(parameters: int, tokens: int) -> float:
    """6·N·tokens: two operations per weight forward and four backward.

    N counts all parameters. Attention is not included.
    """
    return 6.0 * parameters * tokens


def flops_palm(parameters: int, tokens: int, *, layers: int, width: int, sequence: int) -> float:
    """6·N·tokens + 12·L·h·s·tokens: includes attention as if it were not causal (PaLM, torchtitan, llm-foundry)."""
    return (6.0 * parameters + 12.0 * layers * width * sequence) * tokens


def flops_causal(parameters: int, tokens: int, *, layers: int, width: int, sequence: int) -> float:
    """6·N·tokens + 6·L·h·s·tokens: includes causal attention, the half that is really computed."""
    return (6.0 * parameters + 6.0 * layers * width * sequence) * tokens


def tflops(operations: float, time_s: float, *, formula: str) -> Figure:
    """Return operations over time in TFLOP/s. `formula` names how the operations were counted."""
    _positive("time", time_s)
    return Figure(value=operations / time_s / 1e12, unit="TFLOP/s", formula=formula)


def matmul_flops(m: int, n: int, k: int) -> float:
    """Operations of one matrix product: a multiply and an add per element of the m×n×k cube."""
    return 2.0 * m * n * k


def utilisation(achieved_tflops: float, ceiling_tflops: float, *, ceiling: str) -> Figure:
    """Return the share of a named ceiling, because a datasheet and a measured product differ."""
    _positive("ceiling", ceiling_tflops)
    return Figure(value=achieved_tflops / ceiling_tflops, unit="share", formula=f"achieved / {ceiling}")


def rate(items: float, time_s: float, *, unit: str) -> Figure:
    """Return items per second, such as tokens/s or images/s."""
    _positive("time", time_s)
    return Figure(value=items / time_s, unit=unit, formula=f"{unit} = items/time")


def scaling_efficiency(rate_many: float, rate_one: float, factor: float) -> Figure:
    """Return the share of perfect scaling when the same work runs on `factor` times as many devices."""
    _positive("rate of one", rate_one)
    _positive("factor", factor)
    return Figure(value=rate_many / (rate_one * factor), unit="share", formula="rate(n) / (n*rate(1))")


def _positive(what: str, value: float) -> None:
    if not value > 0 or math.isinf(value):
        raise UsageError(f"{what} is {value}: it must be a positive number", hint="give a number above 0")
