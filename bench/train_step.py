"""Measure one training step of our own, tuned for its device: one rank of a run; rank 0 prints the result.

    python bench/train_step.py llm --model llama2-7b --sequence 4096 --accumulation 16 --precision fp8
    python bench/train_step.py resnet --model resnet50 --batch 96

`llm` is `fast_llama` and `resnet` is `fast_resnet`: faster than the plain PyTorch of `windlass bench llm` and
`windlass bench ddp`. Under a launcher it reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import windlass
from fast_llama.loop import FastLlmOptions, train_fast_llm
from fast_resnet.loop import FastResNetOptions, train_fast_resnet
from windlass.bench.cases import table_text
from windlass.bench.options import add_options, asked
from windlass.bench.rank import about_torch, leave, read_world, write_error
from windlass.bench.record import BenchRecord, Where, new_record, write_record
from windlass.bench.runner import checkout_commit
from windlass.bench.train.device import find_device
from windlass.bench.train.messages import train_message
from windlass.bench.train.rows import train_measurement
from windlass.errors import WindlassError
from windlass.model.jsontext import to_json


def parser() -> argparse.ArgumentParser:
    """The command line; every option is a field of the options' classes."""
    top = argparse.ArgumentParser(prog="python bench/train_step.py", description="Measure a training step.")
    cases = top.add_subparsers(dest="case", required=True)
    kinds = {
        "llm": (FastLlmOptions, "a Llama-style language model"),
        "resnet": (FastResNetOptions, "a ResNet on random images"),
    }
    for name, (kind, text) in kinds.items():
        case = cases.add_parser(name, help=text)
        case.set_defaults(kind=kind)
        add_options(case, kind)
        case.add_argument("--json", type=Path, metavar="FILE", help="write the record there; - is standard output")
        case.add_argument("--any-loss", action="store_true", help="report also where the loss does not fall")
    return top


def run(argv: Sequence[str]) -> int:
    """Train, print, and return the exit code."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        options = arguments.kind(**asked(arguments, arguments.kind))
        trained = trained_by(options)
        world = read_world()
        if world.first:
            about = about_torch(find_device(options.device, world.local_rank), None)
            command = ("python", "bench/train_step.py", *without_json(argv))
            _show(record_of(trained, about, command), arguments.json)
        if trained["loss_problems"] and not arguments.any_loss:
            raise WindlassError("; ".join(trained["loss_problems"]), hint="the figures of this run must not be used")
    except WindlassError as error:
        write_error(error)
        return error.exit_code
    return 0


def trained_by(options: FastLlmOptions | FastResNetOptions) -> dict[str, Any]:
    """The message of one run."""
    loop: Any = train_fast_llm if isinstance(options, FastLlmOptions) else train_fast_resnet
    return train_message(loop(options))


def without_json(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments less the place of the record: a record should not name the folder it happened to be written to."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--json":
            next(words, None)
        elif not word.startswith("--json="):
            kept.append(word)
    return tuple(kept)


def record_of(trained: dict[str, Any], about: dict[str, Any], command: tuple[str, ...]) -> BenchRecord:
    """The record of a run from its message and from what `about_torch` says."""
    return new_record(
        trained["case"],
        command=command,
        windlass=windlass.__version__,
        commit=checkout_commit(),
        where=Where(ranks_per_node=trained["ranks"]),
        device=about["device"],
        software=about["software"],
        environment=about["environment"],
        options=trained["options"],
        rows=(train_measurement(trained, nodes=1),),
        remarks=tuple(trained["loss_problems"]),
    )


def _show(record: BenchRecord, where: Path | None) -> None:
    if where is not None and str(where) == "-":
        sys.stdout.write(to_json(record).decode())
        return
    if where is not None:
        write_record(where, record)
    sys.stdout.write(table_text(record) + "\n")


if __name__ == "__main__":
    leave(run(sys.argv[1:]))
