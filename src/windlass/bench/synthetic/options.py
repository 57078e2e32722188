"""What can be asked of `bench synthetic`. Runs inside ranks: stdlib only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.bench.options import option
from windlass.bench.train.options import resnet_blocks
from windlass.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticOptions:
    """Which model and batch, in how many rounds, by which engine."""

    model: str = "resnet50"
    batch: int = option(32, "images per device")
    image: int = 224
    rounds: int = 10
    batches: int = option(10, "batches per round")
    warmup: int = option(10, "batches before the first round")
    fp16_allreduce: bool = option(False, "send gradients as fp16")
    amp: bool = option(False, "compute in bf16 where it is safe")
    engine: Literal["ddp", "horovod", "tensorflow"] = "ddp"
    device: str | None = None

    def __post_init__(self) -> None:
        resnet_blocks(self.model)
        if min(self.batch, self.rounds, self.batches) < 1 or self.warmup < 0:
            raise UsageError(
                "--batch, --rounds and --batches must be 1 or more, --warmup 0 or more",
                hint="leave one out to have its default",
            )
