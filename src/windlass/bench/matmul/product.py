"""The realistic ceiling of a device: the rate of large matrix products on random numbers, in each type it has.

No product reaches a datasheet's rate. So the share of *this* ceiling shows how good a training step is. Products of
zeros run faster than products of data, and one cold product runs faster than a thousand hot ones. So the inputs are
random and there are two figures: `burst`, the first products after a pause, and `sustained`, after seconds of load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windlass.bench import measure
from windlass.bench.matmul.options import TYPES, MatmulType
from windlass.errors import MachineError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulResult:
    """Seconds per product. Each sample is the mean of `products_per_sample` products timed together."""

    type: MatmulType
    m: int
    n: int
    k: int
    products_per_sample: int
    burst_s: tuple[float, ...]
    sustained_s: tuple[float, ...]

    @property
    def burst(self) -> measure.Figure:
        return self._rate(self.burst_s)

    @property
    def sustained(self) -> measure.Figure:
        return self._rate(self.sustained_s)

    def _rate(self, samples: tuple[float, ...]) -> measure.Figure:
        operations = measure.matmul_flops(self.m, self.n, self.k)
        return measure.tflops(operations, measure.percentile(samples, 50), formula="2*m*n*k, median")


def measure_matmul(
    kind: MatmulType,
    size: tuple[int, int, int],
    *,
    device: str | None = None,
    seconds: float = 3.0,
    samples: int = 10,
) -> MatmulResult:
    """Time products of (m, k) by (k, n).

    Raises an error if the device does not have the type or has no memory for the operands.
    """
    from windlass.bench.train.device import StepClock, allow_tf32, find_device, synchronize

    if kind not in TYPES:
        raise UsageError(f"unknown type {kind!r}", hint=f"known: {', '.join(TYPES)}")
    m, n, k = size
    if min(size) < 1:
        raise UsageError(f"a product of {m}x{n}x{k}", hint="all three sizes must be at least 1")
    found = find_device(device)
    if 3 * (m * k + k * n + m * n) * 4 > found.memory_bytes:
        raise UsageError(f"operands of {m}x{n}x{k} do not fit {found.name}", hint="take a smaller size")
    allow_tf32(kind == "tf32")
    products = [_product(kind, size, found) for _ in range(3)]
    for one in products:
        one()
    synchronize(found)

    def sample(count: int) -> float:
        clock = StepClock(found)
        clock.mark()
        for number in range(count):
            products[number % 3]()
        clock.mark()
        return clock.intervals_s()[0] / count

    per_sample = max(3, min(200, int(0.01 / max(sample(3), 1e-7))))
    if found.kind != "cpu":
        time.sleep(1.0)  # let the clocks and the power settle, so that the burst is a burst
    burst = tuple(sample(per_sample) for _ in range(max(3, samples // 2)))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sample(per_sample)
    sustained = tuple(sample(per_sample) for _ in range(samples))
    return MatmulResult(type=kind, m=m, n=n, k=k, products_per_sample=per_sample, burst_s=burst, sustained_s=sustained)


def _product(kind: MatmulType, size: tuple[int, int, int], device: Any) -> Callable[[], object]:
    import torch

    m, n, k = size
    where = device.torch
    if kind.startswith("fp8"):
        if device.fp8 is None:
            raise MachineError(f"{device.name} has no fp8 matrix products", hint="leave fp8 out of the types")
        a = torch.randn(m, k, device=where).to(device.fp8[0])
        b = torch.randn(n, k, device=where).to(device.fp8[0])
        one = torch.ones((), device=where)
        fast = kind == "fp8_fast"
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    left = torch.randn(m, k, device=where, dtype=dtype)
    right = torch.randn(k, n, device=where, dtype=dtype)
    return lambda: left @ right


def default_side(device: Any, asked: int) -> int:
    """Return the side of the matrices: the given size, or the size that this kind of device needs for its rate."""
    return asked or (8192 if device.kind != "cpu" else 1024)
