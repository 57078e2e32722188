"""One rank of `bench llm` and `bench ddp`: run the training step of `windlass.bench.train` and send messages.

If requested, the ceiling of the device is measured after the run, in the same process and on the same hot device. A
share of a ceiling from another day and another node means little.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from typing import Any

from windlass.bench.messages import ResultWriter
from windlass.bench.options import from_values
from windlass.bench.rank import about_torch, guarded, read_world
from windlass.bench.train.options import LlmOptions, ResNetOptions
from windlass.errors import WindlassError


def main(values: dict[str, Any]) -> int:
    kind: type[LlmOptions] | type[ResNetOptions] = LlmOptions if values["case"] == "llm" else ResNetOptions
    ceiling_s = float(values.get("ceiling", 0))
    return guarded(lambda out: _work(from_values(kind, values), ceiling_s, out))


def _work(options: LlmOptions | ResNetOptions, ceiling_s: float, out: ResultWriter) -> None:
    from windlass.bench.train.device import find_device

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    world = read_world()
    device = find_device(options.device, world.local_rank)
    if world.first:
        out.send("about", **about_torch(device, device.collective if options.parallel != "none" else None))
    trained = train(options, lambda part: out.send("train", record=part, whole=False))
    if world.first:
        out.send("train", record=trained, whole=True)
    out.send("steps", rank=world.rank, step_s=list(trained["samples"]["step_s"]))
    if ceiling_s > 0 and world.first:
        _ceiling(trained["options"]["precision"], device, ceiling_s, out)
    if world.first:
        out.send("end")


def train(
    options: LlmOptions | ResNetOptions, so_far: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Return the message of the run.

    `so_far` receives the message of the measurements so far from time to time, for a run that does not finish.
    """
    from windlass.bench.train.loop import train_llm
    from windlass.bench.train.messages import train_message
    from windlass.bench.train.resnet import train_resnet

    tell = so_far or (lambda part: None)
    loop: Any = train_llm if isinstance(options, LlmOptions) else train_resnet
    return train_message(loop(options, lambda part: tell(train_message(part))))


def _ceiling(precision: str, device: Any, seconds: float, out: ResultWriter) -> None:
    """Measure the sustained rate of matrix products in the precision of the step."""
    import torch

    from windlass.bench.matmul.product import default_side, measure_matmul

    gc.collect()
    if device.kind != "cpu":
        getattr(torch, device.kind).empty_cache()
    side = default_side(device, 0)
    kind: Any = precision
    try:
        found = measure_matmul(kind, (side, side, side), device=device.kind, seconds=seconds)
    except WindlassError as error:
        out.send("skipped", text=f"the ceiling: {error.message}")
        return
    out.send("ceiling", type=kind, size=side, tflops=found.sustained.value, samples=list(found.sustained_s))
