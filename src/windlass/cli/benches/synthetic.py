"""Images/s per device on one fixed batch, mean ± 1.96 σ, as Horovod's synthetic benchmark tells it.

DDP by default, with gradients sent as fp16 where asked; Horovod or TensorFlow where they are installed."""

from __future__ import annotations

import argparse

from windlass.bench import synthetic
from windlass.bench.records import Row
from windlass.bench.runner import Outcome, Part
from windlass.bench.train.options import resnet_blocks
from windlass.cli.benches.launching import add_run_options, finish, open_bench
from windlass.cli.result import Result
from windlass.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    add_case_options(parser)


def add_case_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--model", default="resnet50")
    what.add_argument("--batch", type=int, default=32, help="images per device")
    what.add_argument("--image", type=int, default=224)
    what.add_argument("--rounds", type=int, default=10)
    what.add_argument("--batches", type=int, default=10, help="batches per round")
    what.add_argument("--warmup", type=int, default=10, help="batches before the first round")
    what.add_argument("--fp16-allreduce", action="store_true", help="send gradients as fp16")
    what.add_argument("--amp", action="store_true", help="compute in bf16 where it is safe")
    what.add_argument("--engine", choices=("ddp", "horovod", "tensorflow"), default="ddp")


def case_words(args: argparse.Namespace) -> tuple[str, ...]:
    resnet_blocks(args.model)
    if min(args.batch, args.rounds, args.batches) < 1 or args.warmup < 0:
        raise UsageError("--batch, --rounds and --batches must be 1 or more, --warmup 0 or more")
    words = ["--engine", args.engine, "--model", args.model]
    for name in ("batch", "image", "rounds", "batches", "warmup"):
        words += [f"--{name}", str(getattr(args, name))]
    words += ["--fp16-allreduce"] if args.fp16_allreduce else []
    words += ["--amp"] if args.amp else []
    return (*words, *(["--device", args.device] if args.device else []))


def main(args: argparse.Namespace) -> Result:
    words = case_words(args)
    bench = open_bench("synthetic", args, {"model": args.model, "batch": args.batch, "engine": args.engine})
    outcome = bench.run(Part(name="synthetic", program="synthetic", words=words))
    row = row_from(args, outcome) if outcome else None
    record = bench.record([row] if row else [], remarks=synthetic.loss_remarks(row) if row else [])
    return finish(bench, record, args)


def row_from(args: argparse.Namespace, outcome: Outcome) -> Row | None:
    return synthetic.row_of(
        outcome,
        model=args.model,
        batch=args.batch,
        batches=args.batches,
        engine=args.engine,
        compression="fp16" if args.fp16_allreduce else "fp32",
        amp=args.amp,
    )
