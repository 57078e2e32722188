"""What can be asked of `bench llm`: a training step, and the ceiling that it is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.bench.options import option
from windlass.bench.train.options import LlmOptions, llama_size

# As the published figures have it.
_SEQUENCE = {"llama2-7b": 4096, "llama2-13b": 4096, "llama3-8b": 8192}


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmCaseOptions(LlmOptions):
    """Options of the step, and of the matmul load after it (0: leave it out)."""

    ceiling: float = option(3.0, "seconds of matmul load; 0: leave it out", metavar="S")
    ceiling_size: int = 0


def usual_choices(asked: Mapping[str, Any], world_size: int) -> LlmCaseOptions:
    """What was asked, and for what was not: the published sequence of the model, and how so many ranks share it."""
    model = asked.get("model", "tiny")
    parallel = "none" if world_size == 1 else "fsdp" if llama_size(model).parameters > 1e9 else "ddp"
    sequence = {"sequence": _SEQUENCE[model]} if model in _SEQUENCE else {}
    return LlmCaseOptions(**{"parallel": parallel, **sequence, **asked})
