"""ResNet with bottleneck blocks (the stride on the 3×3, as the usual benchmarks have it), and its training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from windlass.bench.train import parallel
from windlass.bench.train.breakdown import Breakdown, profiled
from windlass.bench.train.data import RandomImages
from windlass.bench.train.device import Device, StepClock, allow_tf32, find_device, peak_memory_bytes, synchronize
from windlass.bench.train.optimizer import MasterSgd
from windlass.bench.train.options import ResNetOptions, resnet_blocks

log = logging.getLogger(__name__)


class Pointwise(nn.Conv2d):  # type: ignore[misc]
    """A 1×1 convolution. In channels-last memory it is a matrix product over all pixels, and can be run as one."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, as_matmul: bool = False) -> None:
        super().__init__(inputs, outputs, 1, stride=stride, bias=False)
        self.as_matmul = as_matmul

    def forward(self, x: Tensor) -> Tensor:
        if not self.as_matmul:
            return super().forward(x)
        if self.stride[0] > 1:
            x = x[:, :, :: self.stride[0], :: self.stride[1]]
        return nn.functional.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1)).permute(0, 3, 1, 2)


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1×1 down, 3×3, 1×1 up to four times the width, and a shortcut around them."""

    def __init__(self, inputs: int, width: int, *, stride: int, as_matmul: bool) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = Pointwise(inputs, width, as_matmul=as_matmul)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.spatial = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.spatial_norm = nn.BatchNorm2d(width)
        self.expand = Pointwise(width, outputs, as_matmul=as_matmul)
        self.expand_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                Pointwise(inputs, outputs, stride=stride, as_matmul=as_matmul), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.reduce_norm(self.reduce(x)).relu()
        y = self.spatial_norm(self.spatial(y)).relu()
        y = self.expand_norm(self.expand(y))
        return (y + self.shortcut(x)).relu()


class ResNet(nn.Module):  # type: ignore[misc]
    """Stem, four stages, mean over pixels, classifier. `forward` returns the mean cross entropy."""

    def __init__(self, blocks: tuple[int, int, int, int], classes: int, *, as_matmul: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                stages.append(Bottleneck(inputs, width, stride=stride, as_matmul=as_matmul))
                inputs = 4 * width
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                # The last norm of a block starts at zero: each block starts as its shortcut, and training starts calm.
                nn.init.zeros_(module.expand_norm.weight)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.pool(self.stem_norm(self.stem(images)).relu())
        x = self.stages(x).mean((2, 3))
        return nn.functional.cross_entropy(self.classifier(x).float(), labels)


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


def train_resnet(options: ResNetOptions) -> ResNetResult:
    """Train on fresh random images for `warmup + steps` steps and return the times of the last `steps`."""
    world = parallel.read_world()
    device = find_device(options.device, world.local_rank)
    options = resolve(options, device)
    allow_tf32(bool(options.tf32))
    torch.backends.cudnn.benchmark = True
    with parallel.process_group(world, options.parallel, device):
        return _train(options, device, world)


def resolve(options: ResNetOptions, device: Device) -> ResNetOptions:
    """The options with every None replaced by what suits the device."""
    graphs = device.graphs and options.parallel == "none" if options.graphs is None else options.graphs
    return replace(
        options,
        device=device.kind,
        precision=options.precision or device.precision,
        compile=device.compile if options.compile is None else options.compile,
        # Convolutions in fp32 are TF32 in every published table of this benchmark; products of the step are not affected.
        tf32=device.kind == "cuda" if options.tf32 is None else options.tf32,
        graphs=graphs,
    )


def _train(options: ResNetOptions, device: Device, world: parallel.World) -> ResNetResult:
    torch.manual_seed(options.seed)
    low = options.precision == "bf16"
    plain = _on_device(ResNet(resnet_blocks(options.model), options.classes, as_matmul=options.pointwise_as_matmul), options, device)
    parameters = sum(p.numel() for p in plain.parameters())
    model = parallel.spread_resnet(plain, options.parallel, device)
    # The masters are taken after DDP has made all ranks equal.
    optimizer = MasterSgd(
        model.parameters(), learning_rate=options.learning_rate, momentum=options.momentum, decay=options.weight_decay
    )
    if options.compile:
        model = torch.compile(model, dynamic=False, mode="max-autotune-no-cudagraphs" if options.autotune else None)
    data = RandomImages(
        image=options.image,
        classes=options.classes,
        batch=options.batch,
        seed=options.seed,
        dtype=torch.bfloat16 if low else torch.float32,
        device=device.torch,
    )

    def train_on(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(images, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    first = data.batch(0, world.rank)
    step_on = _captured(train_on, *first) if options.graphs else train_on
    clock = StepClock(device)
    losses: list[Tensor] = []

    def one_step(step: int) -> None:
        losses.append(step_on(*data.batch(step, world.rank)).clone())

    for step in range(options.warmup):
        one_step(step)
    synchronize(device)
    clock.mark()
    for step in range(options.warmup, options.warmup + options.steps):
        one_step(step)
        clock.mark()
    step_s = clock.intervals_s()
    breakdown = profiled(lambda: one_step(options.warmup + options.steps), device) if options.profile else None
    return ResNetResult(
        options=options,
        device=device,
        ranks=world.size,
        parameters=parameters,
        step_s=step_s,
        losses=tuple(float(loss) for loss in losses),
        peak_memory_bytes=peak_memory_bytes(device),
        breakdown=breakdown,
    )


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


def _captured(train_on: Callable[[Tensor, Tensor], Tensor], images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The whole step as one CUDA graph: at small batches the host cannot launch kernels as fast as the device ends them."""
    still_images, still_labels = images.clone(memory_format=torch.preserve_format), labels.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            train_on(still_images, still_labels)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        still_loss = train_on(still_images, still_labels)

    def replay(new_images: Tensor, new_labels: Tensor) -> Tensor:
        still_images.copy_(new_images)
        still_labels.copy_(new_labels)
        graph.replay()
        return still_loss

    return replay
