"""What can be asked of `bench ddp`, and the training step that it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from windlass.bench.options import option
from windlass.bench.train.options import Precision, ResNetOptions
from windlass.errors import UsageError

# As the published tables have it: eager, with the kernels that torch chooses.
_PUBLISHED: dict[str, Any] = {
    "precision": "fp32",
    "compile": False,
    "graphs": False,
    "norm": "torch",
    "pointwise_as_matmul": False,
    "stem_patches": False,
    "channels_last": False,
    "cudnn_benchmark": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DdpOptions:
    """Which models and batch, and by whose method. Refuses what cannot be before anything starts."""

    model: str = option("resnet50", "resnet50,resnet101 (default: resnet50)", metavar="LIST")
    batch: int = option(32, "images per device (default 32)")
    image: int = option(224, "side of the images in pixels")
    steps: int = 10
    warmup: int = 5
    precision: Precision | None = option(
        None, "default: fp32; with --fast what suits the device", choices=("fp32", "bf16", "amp")
    )
    tf32: bool | None = option(None, "default: yes, as the published tables")
    fp16_allreduce: bool = option(False, "send gradients as fp16, as in Horovod's benchmark")
    fast: bool = option(False, "the loop's own choices for this device")
    device: Literal["cuda", "xpu", "cpu"] | None = None

    def __post_init__(self) -> None:
        if min(self.batch, self.steps) < 1 or self.warmup < 0:
            raise UsageError(
                "--batch and --steps must be 1 or more, --warmup 0 or more", hint="leave one out to have its default"
            )
        if self.fast and self.fp16_allreduce:
            raise UsageError("--fp16-allreduce cannot be combined with --fast", hint="leave one of them out")
        for model in self.models:
            self.step(model, parallel=True)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.model.split(",") if name.strip())

    def step(self, model: str, *, parallel: bool) -> ResNetOptions:
        """The training step of one model, with DDP or without."""
        values: dict[str, Any] = {} if self.fast else dict(_PUBLISHED)
        values["fp16_allreduce"] = self.fp16_allreduce and parallel
        for name in ("batch", "image", "steps", "warmup", "precision", "tf32", "device"):
            if getattr(self, name) is not None:
                values[name] = getattr(self, name)
        return ResNetOptions(model=model, parallel="ddp" if parallel else "none", **values)
