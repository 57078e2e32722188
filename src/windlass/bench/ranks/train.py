"""One rank of `bench llm` and `bench ddp`: the training step of `windlass.bench.train`, told instead of printed.

Where asked, the device's own ceiling is measured after the run, in the same process and on the same hot device: a share
of a ceiling that was measured another day on another node means little.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from collections.abc import Sequence
from typing import Any

from windlass.bench.lines import Teller
from windlass.bench.ranks.program import about_torch, guarded, my_place
from windlass.errors import MachineError, WindlassError


def main(argv: Sequence[str]) -> int:
    return guarded(_work, argv)


def _work(argv: Sequence[str], teller: Teller) -> None:
    extra = argparse.ArgumentParser(prog="train")
    extra.add_argument("--ceiling", type=float, metavar="SECONDS", default=0.0)
    extra.add_argument("--ceiling-size", type=int, default=0)
    ours, words = extra.parse_known_args(argv)
    from windlass.bench.train.__main__ import options_of, parser

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    place = my_place()
    options = options_of(parser().parse_args(words))
    from windlass.bench.train.device import find_device

    device = find_device(options.device, place.local_rank)
    if place.first:
        teller.tell("about", **about_torch(device, device.collective if options.parallel != "none" else None))
    record = _train(options, words, teller)
    if place.first:
        teller.tell("train", record=record, whole=True)
    teller.tell("steps", rank=place.rank, step_s=list(record["samples"]["step_s"]))
    if ours.ceiling > 0 and place.first:
        _ceiling(record["options"]["precision"], device, ours.ceiling, ours.ceiling_size, teller)
    if place.first:
        teller.tell("end")


def _train(options: Any, words: Sequence[str], teller: Teller) -> dict[str, Any]:
    """The record of the run. What was measured so far is told on the way, for a run that does not get to its end."""
    import torch

    from windlass.bench.train.loop import train_llm
    from windlass.bench.train.options import LlmOptions
    from windlass.bench.train.record import llm_record, resnet_record
    from windlass.bench.train.resnet_loop import train_resnet

    command = ("python", "-m", "windlass.bench.train", *words)
    try:
        if isinstance(options, LlmOptions):
            return llm_record(
                train_llm(options, lambda part: teller.tell("train", record=llm_record(part, command), whole=False)),
                command,
            )
        return resnet_record(
            train_resnet(options, lambda part: teller.tell("train", record=resnet_record(part, command), whole=False)),
            command,
        )
    except torch.OutOfMemoryError as error:
        raise MachineError(
            f"{options.model} does not fit the device: {str(error).splitlines()[0]}",
            hint="take a smaller batch or sequence, --checkpointing, or --parallel fsdp over more devices",
        ) from error


def _ceiling(precision: str, device: Any, seconds: float, size: int, teller: Teller) -> None:
    """The sustained rate of matrix products in the precision of the step."""
    import torch

    from windlass.bench.matmul import measure_matmul

    gc.collect()
    if device.kind != "cpu":
        getattr(torch, device.kind).empty_cache()
    side = size or (8192 if device.kind != "cpu" else 1024)
    kind: Any = {"fp8": "fp8_fast", "amp": "bf16"}.get(precision, precision)
    try:
        found = measure_matmul(kind, (side, side, side), device=device.kind, seconds=seconds)
    except WindlassError as error:
        teller.tell("skipped", text=f"the ceiling: {error.message}")
        return
    teller.tell("ceiling", type=kind, size=side, tflops=found.sustained.value, samples=list(found.sustained_s))
