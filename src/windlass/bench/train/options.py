"""The options of the training step, and the sizes of the models. Values only, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.bench.options import option
from windlass.errors import UsageError, unknown_name

Precision = Literal["fp32", "bf16", "fp8", "amp"]
"""`bf16` is autocast. The tuned steps of the repository have weights in bf16, `amp` for autocast, and `fp8`."""
Parallel = Literal["none", "ddp", "fsdp"]
Checkpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaSize:
    """The shape of a Llama-style model: RMSNorm, rotary positions, grouped queries, SwiGLU, untied head."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """The number of all parameters, embedding and head included: the N of 6·N·tokens."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        block = attention + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * block + 2 * self.vocabulary * self.width + self.width


LLAMAS: dict[str, LlamaSize] = {
    "tiny": LlamaSize(layers=2, width=64, heads=4, kv_heads=2, hidden=128, vocabulary=256),
    "llama-20m": LlamaSize(layers=6, width=256, heads=4, kv_heads=4, hidden=768, vocabulary=32_000),
    "llama-160m": LlamaSize(layers=12, width=768, heads=12, kv_heads=12, hidden=2_048, vocabulary=32_000),
    "llama-1b": LlamaSize(layers=16, width=2_048, heads=16, kv_heads=16, hidden=5_504, vocabulary=32_000),
    "llama2-7b": LlamaSize(layers=32, width=4_096, heads=32, kv_heads=32, hidden=11_008, vocabulary=32_000),
    "llama2-13b": LlamaSize(layers=40, width=5_120, heads=40, kv_heads=40, hidden=13_824, vocabulary=32_000),
    "llama3-8b": LlamaSize(
        layers=32, width=4_096, heads=32, kv_heads=8, hidden=14_336, vocabulary=128_256, rope_theta=500_000.0
    ),
}

# Bottleneck blocks per stage.
RESNETS: dict[str, tuple[int, int, int, int]] = {
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet-tiny": (1, 1, 1, 1),
}


def state_bytes(parameters: int, precision: Precision, parallel: Parallel, ranks: int) -> int:
    """Return the bytes of weights, gradients, moments and low-precision copies on each device, without activations."""
    masters = 4 * 4 * parameters
    if parallel == "fsdp":
        return masters // ranks
    return masters if precision == "fp32" else masters + 2 * parameters


def learning_rate_for(size: LlamaSize) -> float:
    """Return a peak that lowers the loss of random text within ten steps. There, 3e-4 makes a model of 7B diverge."""
    return 3e-4 if size.parameters < 1e9 else 3e-5


def llama_size(name: str) -> LlamaSize:
    """Return the size of that name. The error for an unknown name suggests the nearest one."""
    if name not in LLAMAS:
        raise unknown_name("model", name, LLAMAS)
    return LLAMAS[name]


def resnet_blocks(name: str) -> tuple[int, int, int, int]:
    """Return the blocks per stage of that ResNet. The error for an unknown name suggests the nearest one."""
    if name not in RESNETS:
        raise unknown_name("model", name, RESNETS)
    return RESNETS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    """The options that both loops share. None means that the device decides (see `device.Device`)."""

    device: Literal["cuda", "xpu", "cpu"] | None = option(None, "default: an accelerator where there is one")
    precision: Precision | None = option(None, "default: what suits the device")
    parallel: Parallel = option("none", "default: none alone; fsdp for models over 1e9, else ddp")
    tf32: bool | None = option(None, "let fp32 products round their inputs to TF32")
    steps: int = 10
    warmup: int = 3
    seed: int = option(1234, hidden=True)

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 1)
        _at_least("warmup", self.warmup, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmOptions(StepOptions):
    """One Llama training run. The global batch is micro_batch × accumulation × ranks sequences."""

    model: str = option("tiny", ", ".join(LLAMAS))
    precision: Precision | None = option(None, "default: what suits the device", choices=("fp32", "bf16"))
    compile: bool | None = option(None, "default: on accelerators")
    sequence: int = 512
    micro_batch: int = 1
    accumulation: int = 1
    checkpointing: Checkpointing = "none"
    learning_rate: float | None = option(None, "default: 3e-4; 3e-5 for models over 1e9")

    def __post_init__(self) -> None:
        # Named explicitly, because super() without arguments does not work in a dataclass with slots.
        StepOptions.__post_init__(self)
        llama_size(self.model)
        for name in ("sequence", "micro_batch", "accumulation"):
            _at_least(name.replace("_", "-"), getattr(self, name), 1)

    @property
    def tokens_per_micro_step(self) -> int:
        return self.micro_batch * self.sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetOptions(StepOptions):
    """One ResNet training run on images made on the device, eager, with the kernels that torch chooses."""

    model: str = option("resnet50", ", ".join(RESNETS))
    precision: Precision | None = option(None, "default: what suits the device", choices=("fp32", "bf16"))
    batch: int = option(32, "images per device")
    image: int = option(224, "side of the images in pixels")
    classes: int = 1_000
    fp16_allreduce: bool = option(False, "with ddp: send gradients as fp16")
    learning_rate: float = 0.0125
    momentum: float = 0.9
    weight_decay: float = 1e-4
    steps: int = 50
    warmup: int = 10

    def __post_init__(self) -> None:
        StepOptions.__post_init__(self)
        resnet_blocks(self.model)
        _at_least("batch", self.batch, 1)
        _at_least("image", self.image, 32)
        _at_least("classes", self.classes, 2)
        if self.image % 32:
            raise UsageError(f"--image is {self.image}", hint="the network halves it five times: use a multiple of 32")
        if self.parallel == "fsdp":
            raise UsageError("ResNet runs under ddp only: its weights fit every device", hint="use --parallel ddp")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise UsageError(f"--{name} is {value}", hint=f"it must be at least {low}")
