"""The matrix product ceiling, on the CPU: what it records and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from requirements import require_torch

require_torch()

import unit.bench.training  # noqa: E402, F401  (one thread)
from windlass.bench.matmul import measure_matmul, run  # noqa: E402
from windlass.errors import UsageError  # noqa: E402


@pytest.mark.parametrize("kind", ["bf16", "fp32", "fp8"])
def test_a_rate_comes_with_its_samples(kind: str) -> None:
    result = measure_matmul(kind, (64, 32, 48), device="cpu", seconds=0.0, samples=4)  # type: ignore[arg-type]
    assert len(result.sustained_s) == 4
    assert result.sustained.value > 0
    assert result.sustained.formula == "2*m*n*k, median"


@pytest.mark.parametrize(
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


def test_the_command_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.json"
    assert run(["--types", "fp32", "--size", "64", "--seconds", "0", "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["results"][0]["type"] == "fp32"
    assert record["results"][0]["sustained"]["unit"] == "TFLOP/s"
    assert "sustained" in capsys.readouterr().out


def test_an_unknown_type_is_an_exit_code_not_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--types", "fp99", "--size", "64"]) == 2
    assert "unknown type" in capsys.readouterr().err
