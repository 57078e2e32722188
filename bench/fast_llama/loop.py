"""The tuned language-model training loop. Read it top to bottom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fast_llama.model import Llama
from fast_llama.optimizer import AdamW
from fast_llama.pieces import make_pieces
from fast_llama.product import Accumulation, ProductRules
from step_profile import profiled
from windlass.bench.options import option
from windlass.bench.rank import World, read_world
from windlass.bench.train import loop, parallel
from windlass.bench.train.data import RandomTokens
from windlass.bench.train.device import Device, allow_tf32, find_device
from windlass.bench.train.interruption import out_of_memory_explained
from windlass.bench.train.options import LlmOptions, Precision, llama_size
from windlass.bench.train.steps import MeasuredRun, SoFar, TrainResult
from windlass.errors import MachineError, UsageError

_WEIGHT_DECAY = 0.1
_CLIP = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FastLlmOptions(LlmOptions):
    """The options of the plain step, fp8 products, and the loss in chunks."""

    precision: Precision | None = option(None, "default: what suits the device", choices=("fp32", "bf16", "fp8"))
    loss_chunk: int = 2_048
    profile: bool = option(False, "one more step under the profiler")

    def __post_init__(self) -> None:
        LlmOptions.__post_init__(self)
        if self.loss_chunk < 1:
            raise UsageError(f"--loss-chunk is {self.loss_chunk}", hint="it must be at least 1")
        if self.precision == "fp8" and (self.micro_batch * self.sequence) % 16:
            raise UsageError(
                f"fp8 products need micro-batch × sequence divisible by 16, not {self.micro_batch * self.sequence}",
                hint="change --sequence or --micro-batch",
            )


def train_fast_llm(options: FastLlmOptions, so_far: SoFar | None = None) -> TrainResult:
    """Train for `warmup + steps` optimizer steps and return the times of the last `steps`."""
    world = read_world()
    device = find_device(options.device, world.local_rank)
    options = resolve(options, device)
    allow_tf32(bool(options.tf32))
    smaller = loop.smaller(options)
    with parallel.process_group(world, options.parallel, device), out_of_memory_explained(device, smaller):
        return _train(options, device, world, so_far)


def resolve(options: FastLlmOptions, device: Device) -> FastLlmOptions:
    """The options with every None replaced by what suits the device; an error where the device lacks what was asked."""
    if options.precision == "fp8" and device.fp8 is None:
        raise MachineError(f"{device.name} has no fp8 matrix products", hint="use --precision bf16")
    return loop.resolve(options, device)


def _train(options: FastLlmOptions, device: Device, world: World, so_far: SoFar | None) -> TrainResult:
    size = llama_size(options.model)
    assert options.learning_rate is not None
    peak = options.learning_rate
    loop.check_memory(options, device, world.size)
    accumulation = Accumulation(in_place=False)
    model = _model(options, device, accumulation)
    optimizer = AdamW(model, weight_decay=_WEIGHT_DECAY, clip=_CLIP, compile=bool(options.compile))
    data = RandomTokens(
        vocabulary=size.vocabulary,
        sequence=options.sequence,
        batch=options.micro_batch,
        seed=options.seed,
        device=device.torch,
    )
    run = MeasuredRun(
        options=options,
        device=device,
        world=world,
        parameters=size.parameters,
        so_far=so_far,
        profile=profiled if options.profile else None,
    )

    def one_step(step: int) -> None:
        total = torch.zeros((), device=device.torch)
        for micro in range(options.accumulation):
            last = micro == options.accumulation - 1
            # DDP's hooks and FSDP's reduction must see the gradient that they send.
            accumulation.in_place = options.parallel == "none" or (options.parallel == "ddp" and not last)
            tokens, targets = data.batch(step, world.rank * options.accumulation + micro)
            with parallel.micro_step(model, options.parallel, last=last):
                loss = model(tokens, targets) / options.accumulation
                loss.backward()
                total += loss.detach()
        run.norms.append(optimizer.step(loop.warm_learning_rate(peak, step)))
        model.zero_grad(set_to_none=True)
        run.losses.append(total)

    return run.measure(one_step)


def _model(options: FastLlmOptions, device: Device, accumulation: Accumulation) -> nn.Module:
    assert options.precision is not None
    plain = Llama(
        llama_size(options.model),
        rules=ProductRules(precision=options.precision, fp8=device.fp8, standing_copies=options.parallel != "fsdp"),
        pieces=make_pieces(compile=bool(options.compile)),
        accumulation=accumulation,
        device=device,
        checkpointing=options.checkpointing,
        loss_chunk=options.loss_chunk,
    )
    spread = parallel.spread_llama(plain, options.parallel, device, options.seed)
    plain.refresh()
    return spread
