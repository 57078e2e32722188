"""The language-model training loop, from nothing to a measured result. Read it top to bottom."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from windlass.bench.rank import World, read_world
from windlass.bench.train import parallel
from windlass.bench.train.data import RandomTokens
from windlass.bench.train.device import Device, allow_tf32, find_device
from windlass.bench.train.interruption import out_of_memory_explained
from windlass.bench.train.llama import Llama
from windlass.bench.train.optimizer import AdamW, warm_learning_rate
from windlass.bench.train.options import LlmOptions, learning_rate_for, llama_size, state_bytes
from windlass.bench.train.pieces import make_pieces
from windlass.bench.train.product import Accumulation, ProductRules
from windlass.bench.train.steps import MeasuredRun, SoFar, TrainResult
from windlass.errors import MachineError

_WEIGHT_DECAY = 0.1
_CLIP = 1.0


def train_llm(options: LlmOptions, so_far: SoFar | None = None) -> TrainResult:
    """Train for `warmup + steps` optimizer steps and return the times of the last `steps`."""
    world = read_world()
    device = find_device(options.device, world.local_rank)
    options = resolve(options, device)
    allow_tf32(bool(options.tf32))
    with parallel.process_group(world, options.parallel, device), out_of_memory_explained(device, smaller(options)):
        return _train(options, device, world, so_far)


def smaller(options: LlmOptions) -> str:
    """What to try where the device has no room, less what is tried already."""
    words = ["a smaller --micro-batch"] if options.micro_batch > 1 else []
    words += {"none": ["--checkpointing selective or full"], "selective": ["--checkpointing full"]}.get(
        options.checkpointing, ["a shorter --sequence"]
    )
    words.append("--parallel fsdp" if options.parallel != "fsdp" else "more ranks")
    return ", ".join(words[:-1]) + f", or {words[-1]}"


def resolve(options: LlmOptions, device: Device) -> LlmOptions:
    """The options with every None replaced by what suits the device; an error where the device lacks what was asked."""
    precision = options.precision or device.precision
    if precision == "fp8" and device.fp8 is None:
        raise MachineError(f"{device.name} has no fp8 matrix products", hint="use --precision bf16")
    return replace(
        options,
        device=device.kind,
        precision=precision,
        compile=device.compile if options.compile is None else options.compile,
        tf32=False if options.tf32 is None else options.tf32,
        learning_rate=options.learning_rate or learning_rate_for(llama_size(options.model)),
    )


def _train(options: LlmOptions, device: Device, world: World, so_far: SoFar | None) -> TrainResult:
    size = llama_size(options.model)
    assert options.learning_rate is not None
    peak = options.learning_rate
    check_memory(options, device, world.size)
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
    run = MeasuredRun(options=options, device=device, world=world, parameters=size.parameters, so_far=so_far)

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
        run.norms.append(optimizer.step(warm_learning_rate(peak, step)))
        model.zero_grad(set_to_none=True)
        run.losses.append(total)

    return run.measure(one_step)


def _model(options: LlmOptions, device: Device, accumulation: Accumulation) -> nn.Module:
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
    return parallel.spread_llama(plain, options.parallel, device, options.seed)


def check_memory(options: LlmOptions, device: Device, ranks: int) -> None:
    """Refuse a model whose state alone is larger than the device, before a login node is driven out of memory."""
    assert options.precision is not None
    needed = state_bytes(llama_size(options.model).parameters, options.precision, options.parallel, ranks)
    if needed > device.memory_bytes:
        raise MachineError(
            f"{options.model} needs {needed / 2**30:.0f} GiB for its state on each device, "
            f"{device.name} has {device.memory_bytes / 2**30:.0f}",
            hint="take a smaller model, or --parallel fsdp on more ranks",
        )
