"""The language-model training loop, from nothing to a measured result. Read it top to bottom."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from windlass.bench.rank import World, read_world
from windlass.bench.train import parallel
from windlass.bench.train.breakdown import Breakdown, profiled
from windlass.bench.train.data import RandomTokens, TokenFile
from windlass.bench.train.device import Device, StepClock, allow_tf32, find_device, need_graphs, peak_memory_bytes
from windlass.bench.train.graph import captured
from windlass.bench.train.interruption import Pace, out_of_memory_explained, stop_kept
from windlass.bench.train.llama import Llama
from windlass.bench.train.optimizer import AdamW, warm_learning_rate
from windlass.bench.train.options import LlmOptions, learning_rate_for, llama_size, state_bytes
from windlass.bench.train.pieces import make_pieces
from windlass.bench.train.product import Accumulation, ProductRules
from windlass.errors import MachineError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmResult:
    """What one run measured. `step_s` holds the timed steps only; `losses` all of them, warm-up first."""

    options: LlmOptions
    device: Device
    ranks: int
    parameters: int
    step_s: tuple[float, ...]
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    peak_memory_bytes: int
    breakdown: Breakdown | None


SoFar = Callable[[LlmResult], None]


def train_llm(options: LlmOptions, so_far: SoFar | None = None) -> LlmResult:
    """Train for `warmup + steps` optimizer steps and return the times of the last `steps`. `so_far` is given what the
    first rank has measured, now and then: a run that is stopped has told it."""
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
    if options.graphs:
        need_graphs(device)
    return replace(
        options,
        device=device.kind,
        precision=precision,
        compile=device.compile if options.compile is None else options.compile,
        tf32=False if options.tf32 is None else options.tf32,
        learning_rate=options.learning_rate or learning_rate_for(llama_size(options.model)),
    )


def _train(options: LlmOptions, device: Device, world: World, so_far: SoFar | None) -> LlmResult:
    size = llama_size(options.model)
    assert options.precision is not None and options.learning_rate is not None
    peak = options.learning_rate
    check_memory(options, device, world.size)
    accumulation = Accumulation(in_place=False)
    plain = Llama(
        size,
        rules=ProductRules(
            precision=options.precision,
            fp8=device.fp8,
            fp8_fast=options.fp8_fast_accumulation,
            standing_copies=options.parallel != "fsdp",
        ),
        pieces=make_pieces(compile=bool(options.compile)),
        accumulation=accumulation,
        device=device,
        checkpointing=options.checkpointing,
        loss_chunk=options.loss_chunk,
    )
    model = parallel.spread_llama(plain, options.parallel, device, options.seed)
    optimizer = AdamW(model, weight_decay=options.weight_decay, clip=options.clip, compile=bool(options.compile))
    data = _data(options, device)
    clock = StepClock(device)
    losses: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []

    def forward_backward(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = model(tokens, targets) / options.accumulation
        loss.backward()
        return loss.detach()

    work = _recorded(forward_backward, model, accumulation, data.batch(0, 0)) if options.graphs else forward_backward

    def one_step(step: int) -> None:
        total = torch.zeros((), device=device.torch)
        for micro in range(options.accumulation):
            last = micro == options.accumulation - 1
            # DDP's hooks and FSDP's reduction must see the gradient that they send.
            accumulation.in_place = options.fuse_accumulation and (
                options.parallel == "none" or (options.parallel == "ddp" and not last)
            )
            tokens, targets = data.batch(step, world.rank * options.accumulation + micro)
            with parallel.micro_step(model, options.parallel, last=last):
                total += work(tokens, targets)
        norms.append(optimizer.step(warm_learning_rate(peak, step)))
        model.zero_grad(set_to_none=not options.graphs)
        losses.append(total)

    def result(losses: list[float], breakdown: Breakdown | None = None) -> LlmResult:
        return LlmResult(
            options=options,
            device=device,
            ranks=world.size,
            parameters=size.parameters,
            step_s=clock.intervals_s(),
            losses=tuple(losses),
            gradient_norms=tuple(float(norm) for norm in norms),
            peak_memory_bytes=peak_memory_bytes(device),
            breakdown=breakdown,
        )

    # Python's collector would stop one rank at a random moment while all others wait for it.
    gc.collect()
    gc.disable()
    try:
        for step in range(options.warmup):
            one_step(step)
            log.info("warm-up %d/%d", step + 1, options.warmup)
        clock.mark()
        pace = Pace()
        with stop_kept(world.size == 1, clock):
            for step in range(options.warmup, options.warmup + options.steps):
                one_step(step)
                clock.mark()
                clock.wait_for(back=1)
                log.info("step %d/%d", step - options.warmup + 1, options.steps)
                if so_far is not None and world.rank == 0 and pace.due():
                    so_far(result([float(loss) for loss in losses]))
        breakdown = None
        if options.profile:
            breakdown = profiled(lambda: one_step(options.warmup + options.steps), device)
    finally:
        gc.enable()

    mean = [parallel.mean_over_ranks(float(loss), world, options.parallel, device) for loss in losses]
    return result(mean, breakdown)


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


def _recorded(
    work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    model: torch.nn.Module,
    accumulation: Accumulation,
    example: tuple[torch.Tensor, torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The micro-step as a graph. Gradients then live in one place for ever: they are added to, and cleared between
    steps."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    accumulation.in_place = True
    replay = captured(work, *example, rehearsals=2)
    model.zero_grad(set_to_none=False)
    return replay


def _data(options: LlmOptions, device: Device) -> RandomTokens | TokenFile:
    size = llama_size(options.model)
    if options.tokens_file is not None:
        return TokenFile(
            options.tokens_file,
            vocabulary=size.vocabulary,
            sequence=options.sequence,
            batch=options.micro_batch,
            seed=options.seed,
            device=device.torch,
        )
    return RandomTokens(
        vocabulary=size.vocabulary,
        sequence=options.sequence,
        batch=options.micro_batch,
        seed=options.seed,
        device=device.torch,
    )
