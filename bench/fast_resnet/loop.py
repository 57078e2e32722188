"""The tuned ResNet training loop: low precision, norms by hand, the whole step as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fast_llama.kernels import kernels_available
from fast_resnet.exchange import FlatGradients
from fast_resnet.graph import captured, rehearsed
from fast_resnet.model import ResNet, to_bf16
from fast_resnet.norm import NormTable
from fast_resnet.optimizer import MasterSgd
from step_profile import profiled
from windlass.bench.options import option
from windlass.bench.rank import World, read_world
from windlass.bench.train import parallel
from windlass.bench.train.data import RandomImages
from windlass.bench.train.device import Device, allow_tf32, find_device
from windlass.bench.train.interruption import out_of_memory_explained
from windlass.bench.train.options import Precision, ResNetOptions, resnet_blocks
from windlass.bench.train.steps import MeasuredRun, SoFar, TrainResult
from windlass.errors import MachineError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class FastResNetOptions(ResNetOptions):
    """The options of the plain step, and the choices that make it fast. None: what suits the device."""

    precision: Precision | None = option(None, "default: what suits the device", choices=("fp32", "bf16", "amp"))
    profile: bool = option(False, "one more step under the profiler")
    compile: bool | None = option(None, "default: on accelerators")
    graphs: bool | None = None
    channels_last: bool = True
    norm: Literal["torch", "by-hand"] | None = None
    pointwise_as_matmul: bool = True
    stem_patches: bool = True
    autotune: bool = option(False, switch=True)
    cudnn_benchmark: bool = True

    def __post_init__(self) -> None:
        ResNetOptions.__post_init__(self)
        if self.norm == "by-hand" and not self.channels_last:
            raise UsageError("norms by hand run in channels-last memory", hint="use --norm torch")


def train_fast_resnet(options: FastResNetOptions, so_far: SoFar | None = None) -> TrainResult:
    """Train on fresh random images for `warmup + steps` steps and return the times of the last `steps`."""
    world = read_world()
    device = find_device(options.device, world.local_rank)
    options = resolve(options, device)
    allow_tf32(bool(options.tf32))
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    with parallel.process_group(world, options.parallel, device), out_of_memory_explained(device, "a smaller --batch"):
        return _train(options, device, world, so_far)


def resolve(options: FastResNetOptions, device: Device) -> FastResNetOptions:
    """The options with every None replaced by what suits the device."""
    graphs = device.kind == "cuda" if options.graphs is None else options.graphs
    if graphs and device.kind != "cuda":
        raise MachineError(f"{device.name} has no graphs", hint="leave --graphs out")
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


def _train(options: FastResNetOptions, device: Device, world: World, so_far: SoFar | None) -> TrainResult:
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
    run = MeasuredRun(
        options=options,
        device=device,
        world=world,
        parameters=parameters,
        so_far=so_far,
        profile=profiled if options.profile else None,
    )

    def one_step(step: int) -> None:
        run.losses.append(step_on(*data.batch(step, world.rank)).clone())

    return run.measure(one_step)


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


def _on_device(model: ResNet, options: FastResNetOptions, device: Device) -> ResNet:
    model = model.to(device.torch)
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if options.precision == "bf16":
        to_bf16(model)
    return model
