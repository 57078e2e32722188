"""The ResNet training loop, from nothing to a measured result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from windlass.bench.rank import World, read_world
from windlass.bench.train import parallel
from windlass.bench.train.breakdown import Breakdown, profiled
from windlass.bench.train.data import RandomImages
from windlass.bench.train.device import (
    Device,
    StepClock,
    allow_tf32,
    find_device,
    need_graphs,
    peak_memory_bytes,
    synchronize,
)
from windlass.bench.train.exchange import FlatGradients
from windlass.bench.train.graph import captured, rehearsed
from windlass.bench.train.interruption import Pace, out_of_memory_explained, stop_kept
from windlass.bench.train.kernels import kernels_available
from windlass.bench.train.norm import NormTable
from windlass.bench.train.optimizer import MasterSgd
from windlass.bench.train.options import ResNetOptions, resnet_blocks
from windlass.bench.train.resnet import ResNet
from windlass.errors import MachineError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetResult:
    """What one run measured. `step_s` holds the timed steps only; `losses` all of them, warm-up first."""

    options: ResNetOptions
    device: Device
    ranks: int
    parameters: int
    step_s: tuple[float, ...]
    losses: tuple[float, ...]
    peak_memory_bytes: int
    breakdown: Breakdown | None


SoFar = Callable[[ResNetResult], None]


def train_resnet(options: ResNetOptions, so_far: SoFar | None = None) -> ResNetResult:
    """Train on fresh random images for `warmup + steps` steps and return the times of the last `steps`. `so_far` is
    given what the first rank has measured, now and then."""
    world = read_world()
    device = find_device(options.device, world.local_rank)
    options = resolve(options, device)
    allow_tf32(bool(options.tf32))
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    with parallel.process_group(world, options.parallel, device), out_of_memory_explained(device, "a smaller --batch"):
        return _train(options, device, world, so_far)


def resolve(options: ResNetOptions, device: Device) -> ResNetOptions:
    """The options with every None replaced by what suits the device."""
    graphs = device.graphs if options.graphs is None else options.graphs
    if graphs:
        need_graphs(device)
    norm = options.norm
    if norm == "by-hand" and not (device.kind == "cuda" and kernels_available()):
        raise MachineError("norms by hand need a CUDA or ROCm device and Triton", hint="use --norm torch")
    if norm is None:
        by_hand = options.channels_last and device.kind == "cuda" and kernels_available()
        norm = "by-hand" if by_hand else "torch"
    return replace(
        options,
        norm=norm,
        device=device.kind,
        precision=options.precision or device.precision,
        compile=device.compile if options.compile is None else options.compile,
        # Convolutions in fp32 are TF32 in every published table of this benchmark; products of the step are not
        # affected.
        tf32=device.kind == "cuda" if options.tf32 is None else options.tf32,
        graphs=graphs,
    )


def _train(options: ResNetOptions, device: Device, world: World, so_far: SoFar | None) -> ResNetResult:
    torch.manual_seed(options.seed)
    low = options.precision == "bf16"
    table = NormTable() if options.norm == "by-hand" else None
    plain = _on_device(
        ResNet(
            resnet_blocks(options.model),
            options.classes,
            as_matmul=options.pointwise_as_matmul,
            patches=options.stem_patches,
            # Where the whole model is compiled, the stem is part of it.
            compile_stem=bool(options.compile) and table is not None,
            table=table,
        ),
        options,
        device,
    )
    parameters = sum(p.numel() for p in plain.parameters())
    # DDP works in hooks of the backward pass: a graph does not replay them, and norms by hand have none.
    flat = options.parallel == "ddp" and (bool(options.graphs) or table is not None)
    exchange = FlatGradients(list(plain.parameters()), world.size) if flat else None
    if exchange is not None:
        exchange.make_equal()
    model = parallel.spread_resnet(plain, "none" if flat else options.parallel, device, fp16=options.fp16_allreduce)
    # The masters are taken after all ranks were made equal.
    optimizer = MasterSgd(
        list(model.parameters()),
        learning_rate=options.learning_rate,
        momentum=options.momentum,
        decay=options.weight_decay,
        compile=bool(options.compile),
    )
    if options.compile and table is None:
        model = torch.compile(model, dynamic=False, mode="max-autotune-no-cudagraphs" if options.autotune else None)
    data = RandomImages(
        image=options.image,
        classes=options.classes,
        batch=options.batch,
        seed=options.seed,
        dtype=torch.bfloat16 if low else torch.float32,
        device=device.torch,
    )

    def forward_backward(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.kind, torch.bfloat16, enabled=options.precision == "amp"):
            loss: Tensor = model(images, labels)
        loss.backward()
        if table is not None:
            table.end()
        if exchange is not None:
            exchange.gather()
        return loss.detach()

    def update() -> None:
        if exchange is not None:
            exchange.give_back()
        optimizer.step()

    with rehearsed((*optimizer.state(), *plain.buffers()), bool(options.graphs)):
        step_on = _whole_step(forward_backward, update, exchange, data.batch(0, world.rank), bool(options.graphs))
    clock = StepClock(device)
    losses: list[Tensor] = []

    def one_step(step: int) -> None:
        losses.append(step_on(*data.batch(step, world.rank)).clone())

    def result(breakdown: Breakdown | None = None) -> ResNetResult:
        return ResNetResult(
            options=options,
            device=device,
            ranks=world.size,
            parameters=parameters,
            step_s=clock.intervals_s(),
            losses=tuple(float(loss) for loss in losses),
            peak_memory_bytes=peak_memory_bytes(device),
            breakdown=breakdown,
        )

    for step in range(options.warmup):
        one_step(step)
    synchronize(device)
    clock.mark()
    pace = Pace()
    with stop_kept(world.size == 1, clock):
        for step in range(options.warmup, options.warmup + options.steps):
            one_step(step)
            clock.mark()
            if so_far is not None and world.rank == 0 and pace.due():
                so_far(result())
    breakdown = profiled(lambda: one_step(options.warmup + options.steps), device) if options.profile else None
    return result(breakdown)


def _whole_step(
    forward_backward: Callable[[Tensor, Tensor], Tensor],
    update: Callable[[], None],
    exchange: FlatGradients | None,
    example: tuple[Tensor, Tensor],
    graphs: bool,
) -> Callable[[Tensor, Tensor], Tensor]:
    """One step: one graph alone; with other ranks a graph on each side of the exchange."""

    def train_on(images: Tensor, labels: Tensor) -> Tensor:
        loss = forward_backward(images, labels)
        if exchange is not None:
            exchange.average()
        update()
        return loss

    if not graphs:
        return train_on
    if exchange is None:
        return captured(train_on, *example)
    forward_backward = captured(forward_backward, *example)
    exchange.average()  # what the rehearsals left, so that the update is rehearsed with the same on every rank
    update = captured(update)
    return train_on


def _on_device(model: ResNet, options: ResNetOptions, device: Device) -> ResNet:
    """Convolutions and classifier in the compute type; norms stay fp32, as their sums over pixels need."""
    model = model.to(device.torch)
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if options.precision == "bf16":
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.to(torch.bfloat16)
    return model
