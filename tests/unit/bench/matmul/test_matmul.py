"""The matrix product ceiling, on the CPU: what it records and what it refuses."""

from __future__ import annotations

import pytest

from looping import each
from requirements import require_torch

require_torch()

import unit.bench.train.training  # noqa: E402, F401  (one thread)
from windlass.bench.matmul.product import measure_matmul  # noqa: E402
from windlass.errors import UsageError  # noqa: E402


@each("kind", ["bf16", "fp32", "fp8"])
def test_a_rate_comes_with_its_samples(kind: str) -> None:
    result = measure_matmul(kind, (64, 32, 48), device="cpu", seconds=0.0, samples=4)  # type: ignore[arg-type]
    assert len(result.sustained_s) == 4
    assert result.sustained.value > 0
    assert result.sustained.formula == "2*m*n*k, median"


@each(
    ("kind", "size", "said"),
    [
        ("int3", (8, 8, 8), "unknown type 'int3'"),
        ("fp32", (0, 8, 8), "a product of 0x8x8"),
        ("fp32", (10**7, 10**7, 10**7), "do not fit"),
    ],
)
def test_impossible_products_are_refused(kind: str, size: tuple[int, int, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        measure_matmul(kind, size, device="cpu")  # type: ignore[arg-type]
