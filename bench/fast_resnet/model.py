"""ResNet with bottleneck blocks (the stride on the 3×3, as the usual benchmarks have it)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compiling import compiled
from fast_resnet.norm import NormTable, TableNorm, TorchNorm


class Pointwise(nn.Conv2d):  # type: ignore[misc]
    """A 1×1 convolution. In channels-last memory, without a stride, it is a matrix product over all pixels."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, as_matmul: bool = False) -> None:
        super().__init__(inputs, outputs, 1, stride=stride, bias=False)
        self.as_matmul = as_matmul and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.as_matmul:
            return super().forward(x)
        batch, _, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(-1, self.in_channels)
        return (pixels @ self.weight.flatten(1).t()).view(batch, height, width, -1).permute(0, 3, 1, 2)


class Stem(nn.Conv2d):  # type: ignore[misc]
    """The 7×7 convolution of stride 2 over three channels. Three channels fit no matrix unit, so it can be computed
    as the equal 4×4 convolution of stride 1 over 2×2 patches of 12 (padded to 16) channels."""

    def __init__(self, *, over_patches: bool, compile: bool = False) -> None:
        super().__init__(3, 64, 7, stride=2, padding=3, bias=False)
        self.over_patches = over_patches
        self._to_patches = compiled(_to_patches, compile)
        self._to_taps = compiled(_to_taps, compile)

    def forward(self, x: Tensor) -> Tensor:
        if not self.over_patches:
            return super().forward(x)
        patches, taps = self._to_patches(x), self._to_taps(self.weight)
        return nn.functional.conv2d(patches.permute(0, 3, 1, 2), taps.permute(0, 3, 1, 2))


def _to_patches(x: Tensor) -> Tensor:
    """(batch, height/2 + 3, width/2 + 3, 16): the four pixels of a 2×2 patch side by side, and the borders of zeros."""
    batch, _, height, width = x.shape
    patches = x.permute(0, 2, 3, 1).reshape(batch, height // 2, 2, width // 2, 2, 3).permute(0, 1, 3, 2, 4, 5)
    return nn.functional.pad(patches.reshape(batch, height // 2, width // 2, 12), (0, 4, 2, 1, 2, 1))


def _to_taps(weight: Tensor) -> Tensor:
    """(64, 4, 4, 16): one more row and column of zeros in front makes the 7×7 an 8×8 whose taps pair up with
    patches."""
    taps = nn.functional.pad(weight, (1, 0, 1, 0)).view(64, 3, 4, 2, 4, 2).permute(0, 2, 4, 3, 5, 1)
    return nn.functional.pad(taps.reshape(64, 4, 4, 12), (0, 4))


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1×1 down, 3×3, 1×1 up to four times the width, and a shortcut around them.

    It takes and returns its value twice (the same tensor): once for the branch and once for the shortcut.
    """

    def __init__(self, inputs: int, width: int, *, stride: int, as_matmul: bool, table: NormTable | None) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = Pointwise(inputs, width, as_matmul=as_matmul)
        self.reduce_norm = _norm(table, width)
        self.spatial = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.spatial_norm = _norm(table, width)
        self.expand = Pointwise(width, outputs, as_matmul=as_matmul)
        # The last norm of a block starts at zero: each block starts as its shortcut, and training starts calm.
        self.expand_norm = _norm(table, outputs, zero=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = Pointwise(inputs, outputs, stride=stride, as_matmul=as_matmul)
            self.shortcut_norm = _norm(table, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        y, _ = self.reduce_norm(self.reduce(x))
        y, _ = self.spatial_norm(self.spatial(y))
        if self.shortcut is not None:
            skip, _ = self.shortcut_norm(self.shortcut(skip), relu=False)
        result: tuple[Tensor, Tensor] = self.expand_norm(self.expand(y), skip)
        return result


class ResNet(nn.Module):  # type: ignore[misc]
    """Stem, four stages, mean over pixels, classifier. `forward` returns the mean cross entropy."""

    def __init__(
        self,
        blocks: tuple[int, int, int, int],
        classes: int,
        *,
        as_matmul: bool = False,
        patches: bool = False,
        compile_stem: bool = False,
        table: NormTable | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        self.stem = Stem(over_patches=patches, compile=compile_stem)
        self.stem_norm = _norm(table, 64)
        self.blocks = nn.ModuleList()
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                self.blocks.append(Bottleneck(inputs, width, stride=stride, as_matmul=as_matmul, table=table))
                inputs = 4 * width
        self.classifier = nn.Linear(inputs, classes)
        if table is not None:
            table.build()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        if self.table is not None:
            self.table.begin()
        y, skip = self.stem_norm.pooled(self.stem(images))
        for block in self.blocks:
            y, skip = block(y, skip)
        return nn.functional.cross_entropy(self.classifier(y.mean((2, 3))).float(), labels)


def _norm(table: NormTable | None, channels: int, *, zero: bool = False) -> TorchNorm | TableNorm:
    if table is not None:
        return table.add(channels, zero=zero)
    norm = TorchNorm(channels)
    if zero:
        torch.nn.init.zeros_(norm.weight)
    return norm


def to_bf16(model: nn.Module) -> None:
    """Convolutions and classifier in bf16; norms stay fp32, as their sums over pixels need."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)
