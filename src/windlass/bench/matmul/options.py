"""The options of `bench matmul`. Runs inside ranks: standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.bench.options import option
from windlass.errors import UsageError, unknown_name

MatmulType = Literal["bf16", "fp16", "tf32", "fp32", "fp8", "fp8_fast"]
TYPES: tuple[MatmulType, ...] = ("bf16", "fp16", "tf32", "fp32", "fp8", "fp8_fast")


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulOptions:
    """The types, the size, and the duration of the load."""

    types: str = option(",".join(TYPES), f"of {', '.join(TYPES)} (default: all)", metavar="LIST")
    size: int = option(0, "N x N x N (default: 8192; 1024 on the CPU)")
    seconds: float = option(3.0, "load before the sustained figure is taken")
    device: str | None = None

    def __post_init__(self) -> None:
        for kind in self.types.split(","):
            if kind not in TYPES:
                raise unknown_name("type", kind, TYPES)
        if self.size < 0 or self.seconds <= 0:
            raise UsageError("--size and --seconds must be positive", hint="leave one out to have its default")
