"""Where the time of a step goes: device time by kind of kernel, and the time the device had nothing to do."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from windlass.bench.train.device import Device, synchronize

# First match wins. Names as they show in traces of CUDA and ROCm.
_KINDS: tuple[tuple[str, str], ...] = (
    ("by hand", r"^(_swiglu_|sums$|apply$|apply_pool$|back_sums$|back_input$)"),
    ("attention", r"flash|fmha|sdpa|attention|compute_dot_do_o|convert_dq"),
    ("optimizer", r"adam|multi_tensor|sgd|foreach|triton_for|lerp|FusedOptim"),
    ("communication", r"nccl|rccl|oneccl"),
    ("compiled", r"^triton_"),
    ("convolution", r"fprop|dgrad|wgrad|implicit_?gemm|conv2d|convolution|cask_plugin"),
    ("product", r"gemm|cutlass|nvjet|cublas|Cijk|_mm_|matmul|splitKreduce"),
    ("copy", r"memcpy|memset|copy"),
    ("elementwise", r"elementwise|vectorized|reduce|CatArray|index|softmax|batch_norm|bn_|pool"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Milliseconds of one step. `idle_ms` is the span from the first kernel to the last, less the time any kernel
    ran."""

    span_ms: float
    idle_ms: float
    kinds_ms: tuple[tuple[str, float], ...]
    kernels: tuple[tuple[str, int, float], ...]  # name, calls, ms: the largest ones


def kind_of(kernel: str) -> str:
    """The kind of a kernel by its name, 'other' where no rule knows it."""
    for kind, pattern in _KINDS:
        if re.search(pattern, kernel, re.IGNORECASE):
            return kind
    return "other"


def busy_us(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals: kernels that overlap count once."""
    total = 0.0
    end = float("-inf")
    for start, stop in sorted(intervals):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total


_LARGEST = 80
"""How many kernels are named, by the time they take together."""


def profiled(work: Callable[[], None], device: Device) -> Breakdown | None:
    """Run the work once under the profiler; None on the CPU, whose kernels it does not time apart."""
    if device.kind == "cpu":
        work()
        return None
    accelerator = ProfilerActivity.CUDA if device.kind == "cuda" else ProfilerActivity.XPU
    synchronize(device)
    with profile(activities=[accelerator]) as trace:
        work()
        synchronize(device)
    return _summarise(trace)


def _summarise(trace: Any) -> Breakdown | None:
    intervals: list[tuple[float, float]] = []
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in trace.events():
        if event.device_type.name not in {"CUDA", "XPU"}:
            continue
        start, stop = float(event.time_range.start), float(event.time_range.end)
        intervals.append((start, stop))
        by_name[event.name].append(stop - start)
    if not intervals:
        return None
    kinds: dict[str, float] = defaultdict(float)
    for name, times in by_name.items():
        kinds[kind_of(name)] += sum(times) / 1e3
    span = max(stop for _, stop in intervals) - min(start for start, _ in intervals)
    largest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:_LARGEST]
    return Breakdown(
        span_ms=span / 1e3,
        idle_ms=(span - busy_us(intervals)) / 1e3,
        kinds_ms=tuple(sorted(kinds.items(), key=lambda item: -item[1])),
        kernels=tuple((name[:120], len(times), sum(times) / 1e3) for name, times in largest),
    )
