"""`python -m windlass.bench.train llm|resnet ...`: one rank of a training run; rank 0 prints the result."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from windlass.bench.train.options import (
    CHECKPOINTINGS,
    LLM_PRECISIONS,
    PARALLELS,
    RESNET_PRECISIONS,
    LlmOptions,
    ResNetOptions,
)
from windlass.errors import WindlassError


def parser() -> argparse.ArgumentParser:
    """The command line; every default is that of the options' classes."""
    top = argparse.ArgumentParser(prog="python -m windlass.bench.train", description="Measure a training step.")
    cases = top.add_subparsers(dest="case", required=True)
    llm = cases.add_parser("llm", help="a Llama-style language model")
    llm.add_argument("--tokens-file", type=Path)
    llm.add_argument("--checkpointing", choices=CHECKPOINTINGS)
    llm.add_argument("--fp8-fast-accumulation", choices=("all", "forward", "none"))
    for name, kind in (("sequence", int), ("micro-batch", int), ("accumulation", int), ("loss-chunk", int)):
        llm.add_argument(f"--{name}", type=kind)
    for name in ("weight-decay", "clip"):
        llm.add_argument(f"--{name}", type=float)
    llm.add_argument("--fuse-accumulation", action=argparse.BooleanOptionalAction)
    llm.add_argument("--graphs", action=argparse.BooleanOptionalAction)
    resnet = cases.add_parser("resnet", help="a ResNet on random images")
    for name in ("batch", "image", "classes"):
        resnet.add_argument(f"--{name}", type=int)
    for name in ("graphs", "channels-last", "pointwise-as-matmul", "stem-patches", "autotune", "cudnn-benchmark"):
        resnet.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    resnet.add_argument("--norm", choices=("torch", "by-hand"))
    llm.add_argument("--precision", choices=LLM_PRECISIONS)
    resnet.add_argument("--precision", choices=RESNET_PRECISIONS)
    for case in (llm, resnet):
        case.add_argument("--model")
        case.add_argument("--device", choices=("cuda", "xpu", "cpu"))
        case.add_argument("--parallel", choices=PARALLELS)
        case.add_argument("--compile", action=argparse.BooleanOptionalAction)
        case.add_argument("--tf32", action=argparse.BooleanOptionalAction)
        case.add_argument("--learning-rate", type=float)
        for name in ("steps", "warmup", "seed"):
            case.add_argument(f"--{name}", type=int)
        case.add_argument("--profile", action="store_true", help="one more step, under the profiler")
        case.add_argument("--json", type=Path, metavar="FILE", help="write the record there; - is standard output")
        case.add_argument("--any-loss", action="store_true", help="report also where the loss does not fall")
    return top


def options_of(arguments: argparse.Namespace) -> LlmOptions | ResNetOptions:
    """The options that were asked; what was not asked keeps its default."""
    kind: type[LlmOptions] | type[ResNetOptions] = LlmOptions if arguments.case == "llm" else ResNetOptions
    known = {field.name for field in fields(kind)}
    asked: dict[str, Any] = {k: v for k, v in vars(arguments).items() if k in known and v is not None}
    return kind(**asked)


def run(argv: Sequence[str]) -> int:
    """Train, print, and return the exit code."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    command = ("python", "-m", "windlass.bench.train", *without_json(argv))
    try:
        options = options_of(arguments)
        if isinstance(options, LlmOptions):
            from windlass.bench.train.loop import train_llm
            from windlass.bench.train.record import llm_record

            record = llm_record(train_llm(options), command)
        else:
            from windlass.bench.train.record import resnet_record
            from windlass.bench.train.resnet_loop import train_resnet

            record = resnet_record(train_resnet(options), command)
        if int(os.environ.get("RANK", "0")) == 0:
            _show(record, arguments.json)
        if not arguments.any_loss:
            from windlass.bench.train.record import refuse_bad_loss

            refuse_bad_loss(record)
    except WindlassError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


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


def _show(record: dict[str, Any], where: Path | None) -> None:
    text = json.dumps(record, indent=1)
    if where is not None and str(where) == "-":
        sys.stdout.write(text + "\n")
        return
    if where is not None:
        where.write_text(text + "\n")
    sys.stdout.write(summary(record))


def summary(record: dict[str, Any]) -> str:
    """A few lines for people; the loss and the spread beside the speed."""
    steps, losses = record["spread"]["step_s"], record["losses"]
    lines = [
        f"{record['case']} {record['options']['model']} {record['options']['precision']} on {record['ranks']} x "
        f"{record['device']['name']}, torch {record['software']['torch']}",
        f"  step      {steps['median'] * 1e3:.2f} ms (median of {steps['n']}; {steps['low'] * 1e3:.2f} to "
        f"{steps['high'] * 1e3:.2f}, cv {steps['cv']:.2%})",
        f"  loss      {losses[0]:.4f} to {losses[-1]:.4f}",
        f"  memory    {record['peak_memory_bytes'] / 2**30:.1f} GiB",
    ]
    lines += [f"  {f['value']:>12,.1f} {f['unit']:<9} {name} [{f['formula']}]" for name, f in record["figures"].items()]
    if record["breakdown"]:
        kinds = ", ".join(f"{kind} {ms:.1f}" for kind, ms in record["breakdown"]["kinds_ms"])
        lines.append(
            f"  profile   span {record['breakdown']['span_ms']:.1f} ms, "
            f"idle {record['breakdown']['idle_ms']:.1f}: {kinds}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
