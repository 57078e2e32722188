"""ResNet with bottleneck blocks (the stride on the 3×3, as in the usual benchmarks), and its training loop.

Plain eager PyTorch, as in the published tables. The repository's `bench/fast_resnet` has a tuned step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from windlass.bench.rank import World, read_world
from windlass.bench.train import parallel
from windlass.bench.train.data import RandomImages
from windlass.bench.train.device import Device, allow_tf32, find_device
from windlass.bench.train.interruption import out_of_memory_explained
from windlass.bench.train.options import ResNetOptions, resnet_blocks
from windlass.bench.train.steps import MeasuredRun, SoFar, TrainResult


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1×1 down, 3×3, 1×1 up to four times the width, and a shortcut around them."""

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = _pointwise(inputs, width)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.spatial = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.spatial_norm = nn.BatchNorm2d(width)
        self.expand = _pointwise(width, outputs)
        self.expand_norm = nn.BatchNorm2d(outputs)
        # The last norm of a block starts at zero. So each block starts as its shortcut, and training starts stable.
        nn.init.zeros_(self.expand_norm.weight)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = _pointwise(inputs, outputs, stride=stride)
            self.shortcut_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.reduce_norm(self.reduce(x)).relu()
        y = self.spatial_norm(self.spatial(y)).relu()
        skip = x if self.shortcut is None else self.shortcut_norm(self.shortcut(x))
        result: Tensor = (self.expand_norm(self.expand(y)) + skip).relu()
        return result


class ResNet(nn.Module):  # type: ignore[misc]
    """Stem, four stages, mean over pixels, classifier. `forward` returns the mean cross entropy."""

    def __init__(self, blocks: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(64)
        self.blocks = nn.ModuleList()
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for index in range(count):
                self.blocks.append(Bottleneck(inputs, width, stride=2 if stage > 0 and index == 0 else 1))
                inputs = 4 * width
        self.classifier = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.stem_norm(self.stem(images)).relu(), 3, stride=2, padding=1)
        for block in self.blocks:
            y = block(y)
        return nn.functional.cross_entropy(self.classifier(y.mean((2, 3))).float(), labels)


def _pointwise(inputs: int, outputs: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)


def train_resnet(options: ResNetOptions, so_far: SoFar | None = None) -> TrainResult:
    """Train on new random images for `warmup + steps` steps and return the times of the last `steps`."""
    world = read_world()
    device = find_device(options.device, world.local_rank)
    options = replace(
        options,
        device=device.kind,
        precision=options.precision or device.precision,
        # Convolutions in fp32 are TF32 in every published table of this benchmark.
        tf32=device.kind == "cuda" if options.tf32 is None else options.tf32,
    )
    allow_tf32(bool(options.tf32))
    torch.backends.cudnn.benchmark = False
    with parallel.process_group(world, options.parallel, device), out_of_memory_explained(device, "a smaller --batch"):
        return _train(options, device, world, so_far)


def _train(options: ResNetOptions, device: Device, world: World, so_far: SoFar | None) -> TrainResult:
    torch.manual_seed(options.seed)
    plain = ResNet(resnet_blocks(options.model), options.classes).to(device.torch)
    model = parallel.spread_resnet(plain, options.parallel, device, fp16=options.fp16_allreduce)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=options.learning_rate, momentum=options.momentum, weight_decay=options.weight_decay
    )
    data = RandomImages(
        image=options.image,
        classes=options.classes,
        batch=options.batch,
        seed=options.seed,
        dtype=torch.float32,
        device=device.torch,
    )
    parameters = sum(p.numel() for p in plain.parameters())
    run = MeasuredRun(options=options, device=device, world=world, parameters=parameters, so_far=so_far)

    def one_step(step: int) -> None:
        images, labels = data.batch(step, world.rank)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.kind, torch.bfloat16, enabled=options.precision == "bf16"):
            loss: Tensor = model(images, labels)
        loss.backward()
        optimizer.step()
        run.losses.append(loss.detach())

    return run.measure(one_step)
