"""What DDP costs, from one device to all nodes: percentiles of the time per iteration and of the examples per second.

The method is that of the published tables (fp32 with TF32 convolutions, eager). --fast takes the training loop's own
choices for this device instead: lower precision, compiled, graphs."""

from __future__ import annotations

import argparse

from windlass.bench import ddp
from windlass.bench.runner import Bench, Part
from windlass.bench.train.__main__ import options_of, parser
from windlass.bench.train.options import RESNET_PRECISIONS, resnet_blocks
from windlass.bench.training import loss_remarks, row_of
from windlass.cli.benches.launching import add_run_options, finish, open_bench, size_here
from windlass.cli.result import Result
from windlass.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    add_case_options(parser)


def add_case_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--model", default="resnet50", metavar="LIST", help="resnet50,resnet101 (default: resnet50)")
    what.add_argument("--batch", type=int, default=32, help="images per device (default 32)")
    what.add_argument("--image", type=int, default=224, help="side of the images in pixels")
    what.add_argument("--steps", type=int, default=10)
    what.add_argument("--warmup", type=int, default=5)
    what.add_argument("--precision", choices=RESNET_PRECISIONS, help="default: fp32; with --fast what suits the device")
    what.add_argument("--tf32", action=argparse.BooleanOptionalAction, help="default: yes, as the published tables")
    what.add_argument("--fast", action="store_true", help="the loop's own choices for this device")


def case_words(args: argparse.Namespace, model: str, *, parallel: bool) -> tuple[str, ...]:
    resnet_blocks(model)
    if min(args.batch, args.steps) < 1 or args.warmup < 0:
        raise UsageError("--batch and --steps must be 1 or more, --warmup 0 or more")
    words = ["resnet", "--model", model, "--batch", str(args.batch), "--image", str(args.image)]
    words += ["--steps", str(args.steps), "--warmup", str(args.warmup), "--parallel", "ddp" if parallel else "none"]
    precision = args.precision or (None if args.fast else "fp32")
    words += ["--precision", precision] if precision else []
    words += [] if args.fast else ["--no-compile", "--no-graphs", "--norm", "torch", "--no-pointwise-as-matmul"]
    words += [] if args.fast else ["--no-stem-patches", "--no-channels-last", "--no-cudnn-benchmark"]
    words += [] if args.tf32 is None else ["--tf32" if args.tf32 else "--no-tf32"]
    options_of(parser().parse_args(words))  # what cannot be is refused before anything starts
    return (*words, *(["--device", args.device] if args.device else []))


def main(args: argparse.Namespace) -> Result:
    models = [name.strip() for name in args.model.split(",") if name.strip()]
    words = {(m, p): case_words(args, m, parallel=p) for m in models for p in (False, True)}
    bench = open_bench("ddp", args, {"model": args.model, "batch": args.batch, "image": args.image, "fast": args.fast})
    rows = []
    for model, step in ((model, step) for model in models for step in ddp.sweep(*size_here(bench))):
        outcome = bench.run(
            Part(
                name=f"{model}-{step.label.replace(' ', '-').replace('/', '-')}",
                program="train",
                words=words[model, step.ddp],
                nodes=step.nodes,
                ranks_per_node=step.ranks_per_node,
            ),
            alone=False,
        )
        row = row_of(outcome, label=step.label) if outcome else None
        rows += [row] if row else []
        if bench.interrupted:
            break
    return finish(bench, bench.record(rows, remarks=_remarks(bench)), args)


def _remarks(bench: Bench) -> list[str]:
    """Ten steps need not lower a loss; that it is a number they must."""
    return [remark for remark in loss_remarks(bench.outcomes) if "does not fall" not in remark]
