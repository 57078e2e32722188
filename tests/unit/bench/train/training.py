"""What the tests of the training step share: a short run of the tiny model on the CPU."""

from __future__ import annotations

import dataclasses

from requirements import require_torch

require_torch()

import torch  # noqa: E402

from fast_llama.loop import FastLlmOptions, train_fast_llm  # noqa: E402
from windlass.bench.train.loop import train_llm  # noqa: E402
from windlass.bench.train.options import LlmOptions  # noqa: E402
from windlass.bench.train.steps import TrainResult  # noqa: E402

# The models are tiny: more threads would only wait for each other, most of all on a busy machine.
torch.set_num_threads(1)

REFERENCE = LlmOptions(
    model="tiny",
    device="cpu",
    precision="fp32",
    sequence=32,
    micro_batch=2,
    accumulation=2,
    steps=25,
    warmup=0,
    learning_rate=3e-3,
)


def short_run(**changes: object) -> TrainResult:
    """The reference run with some options changed."""
    return train_llm(dataclasses.replace(REFERENCE, **changes))  # type: ignore[arg-type]


def tuned_run(**changes: object) -> TrainResult:
    """The same run by the tuned step."""
    return train_fast_llm(FastLlmOptions(**{**dataclasses.asdict(REFERENCE), **changes}))


def largest_distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The largest relative distance between two loss curves."""
    return max(abs(a - b) / a for a, b in zip(one, other, strict=True))
