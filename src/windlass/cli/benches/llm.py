"""A training step of a Llama-style model: tokens/s, TFLOP/s and utilisation per device, each with its formula.

The ceiling that utilisation refers to is measured in the same run (see `windlass bench matmul`)."""

from __future__ import annotations

import argparse

from windlass.bench import training
from windlass.bench.records import Row
from windlass.bench.reference import datasheet_tflops
from windlass.bench.runner import Outcome, Part
from windlass.bench.train.__main__ import options_of, parser
from windlass.bench.train.options import CHECKPOINTINGS, LLAMAS, LLM_PRECISIONS, PARALLELS, llama_size
from windlass.cli.benches.launching import add_run_options, finish, open_bench, size_here
from windlass.cli.result import Result

# As the published figures have it.
_SEQUENCE = {"llama2-7b": 4096, "llama2-13b": 4096, "llama3-8b": 8192}
_SWITCHES = {
    "compile": "default: on accelerators",
    "tf32": "let fp32 products round their inputs to TF32 (default: no)",
    "graphs": "the micro-step as a CUDA graph, on one device (default: no)",
}
_NUMBERS = ("sequence", "micro-batch", "accumulation", "loss-chunk", "steps", "warmup", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    add_case_options(parser)


def add_case_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--model", default="tiny", help=", ".join(LLAMAS))
    what.add_argument("--parallel", choices=PARALLELS, help="default: none alone; fsdp for models over 1e9, else ddp")
    what.add_argument("--precision", choices=LLM_PRECISIONS, help="default: what suits the device")
    what.add_argument("--checkpointing", choices=CHECKPOINTINGS)
    for name in _NUMBERS:
        what.add_argument(f"--{name}", type=int, metavar="N")
    what.add_argument("--learning-rate", type=float, metavar="X", help="default: 3e-4; 3e-5 for models over 1e9")
    what.add_argument("--tokens-file", metavar="FILE", help="token ids instead of random ones")
    for name, text in _SWITCHES.items():
        what.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)
    what.add_argument("--profile", action="store_true", help="one more step under the profiler")
    what.add_argument("--ceiling", type=float, default=3.0, metavar="S", help="seconds of matmul load; 0: leave it out")
    what.add_argument("--ceiling-size", type=int, default=0, metavar="N")


def case_words(args: argparse.Namespace, world_size: int) -> tuple[str, ...]:
    size = llama_size(args.model)
    parallel = args.parallel or ("none" if world_size == 1 else "fsdp" if size.parameters > 1e9 else "ddp")
    words = ["llm", "--model", args.model, "--parallel", parallel]
    if args.sequence is None and args.model in _SEQUENCE:
        words += ["--sequence", str(_SEQUENCE[args.model])]
    for name in (*_NUMBERS, "precision", "checkpointing", "learning-rate", "tokens-file", "device"):
        value = getattr(args, name.replace("-", "_"))
        words += [f"--{name}", str(value)] if value is not None else []
    for name in _SWITCHES:
        on = getattr(args, name)
        words += [] if on is None else [f"--{name}" if on else f"--no-{name}"]
    words += ["--profile"] if args.profile else []
    options_of(parser().parse_args(words))  # what cannot be is refused before anything starts
    return (*words, "--ceiling", str(args.ceiling), "--ceiling-size", str(args.ceiling_size))


def main(args: argparse.Namespace) -> Result:
    llama_size(args.model)
    bench = open_bench("llm", args, {"model": args.model})
    nodes, ranks = size_here(bench)
    outcome = bench.run(Part(name="llm", program="train", words=case_words(args, nodes * ranks)))
    row = row_from(outcome) if outcome else None
    bench.options |= training.options_of(bench.outcomes)
    record = bench.record([row] if row else [], remarks=training.loss_remarks(bench.outcomes))
    return finish(bench, record, args)


def row_from(outcome: Outcome) -> Row | None:
    row = training.row_of(outcome)
    if row is None:
        return None
    ceiling = next(iter(outcome.of_kind("ceiling")), None)
    device = str(outcome.about.get("device", {}).get("name", ""))
    return training.with_utilisation(row, ceiling, datasheet_tflops(device, str(row.labels["precision"])))
