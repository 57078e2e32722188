"""Batch norm with what follows it: the sum with a shortcut and the ReLU. Torch's own, or four Triton kernels by hand.

By hand there are two passes forward (sums; apply) and two backward (sums; input), and nothing between two of them but
memory. All norms of a network share one `NormTable`: their weights are one parameter, their sums one buffer that one
kernel clears per step, and their running averages are updated by one kernel per step. With a norm after each of 53
convolutions this is what keeps a small batch from being a queue of tiny kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from windlass.errors import UsageError

try:
    from fast_resnet import norm_kernels as kernels
except ImportError:  # no Triton: the CPU wheels of torch come without it
    kernels = None  # type: ignore[assignment]

EPS = 1e-5
MOMENTUM = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """What one program of a kernel takes at a time, and how many programs there are for each multiprocessor."""

    rows: int
    channels: int
    warps: int
    programs: int


# By kernel: the tile from so many elements on, largest first. By measurement on an H200
# (results/h200/README.md). The sums want few programs when the matrix is small, because each ends with
# atomic additions to the same few addresses.
TILES: dict[str, tuple[tuple[int, Tile], ...]] = {
    "sums": (
        (9_000_000, Tile(rows=32, channels=64, warps=4, programs=16)),
        (4_000_000, Tile(rows=32, channels=64, warps=4, programs=8)),
        (0, Tile(rows=64, channels=64, warps=4, programs=4)),
    ),
    "apply": (
        (15_000_000, Tile(rows=16, channels=128, warps=4, programs=16)),
        (0, Tile(rows=32, channels=128, warps=4, programs=8)),
    ),
    "back_sums": ((0, Tile(rows=64, channels=64, warps=4, programs=4)),),
    "back_sums_joined": ((0, Tile(rows=32, channels=64, warps=4, programs=8)),),
    "back_input": (
        (15_000_000, Tile(rows=16, channels=128, warps=4, programs=16)),
        (0, Tile(rows=32, channels=128, warps=4, programs=8)),
    ),
    "pool": ((0, Tile(rows=16, channels=64, warps=4, programs=16)),),
    "pool_back": ((0, Tile(rows=16, channels=64, warps=4, programs=16)),),
}


class TorchNorm(nn.BatchNorm2d):  # type: ignore[misc]
    """The plain form: one module per norm, left to torch.compile to fuse."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> tuple[Tensor, Tensor]:
        y = super().forward(x)
        if shortcut is not None:
            y = y + shortcut
        y = y.relu() if relu else y
        return y, y

    def pooled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The norm, the ReLU, and the 3×3 maximum of stride 2."""
        y = nn.functional.max_pool2d(super().forward(x).relu(), 3, stride=2, padding=1)
        return y, y


class NormTable(nn.Module):  # type: ignore[misc]
    """Weights and statistics of all norms of a network, side by side in a few long vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = 0
        self.norms: list[TableNorm] = []

    def add(self, channels: int, *, zero: bool = False) -> TableNorm:
        """One more norm; `zero` starts its weight at 0."""
        norm = TableNorm(self, self.channels, channels, zero=zero)
        self.norms.append(norm)
        self.channels += channels
        return norm

    def build(self) -> None:
        """Make the vectors, after the last norm was added."""
        weight = torch.ones(self.channels)
        for norm in self.norms:
            if norm.zero:
                weight[norm.place] = 0.0
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(self.channels))
        # Rows: running mean, running variance; mean, variance of this batch; then the sums.
        self.register_buffer("running", torch.stack((torch.zeros(self.channels), torch.ones(self.channels))))
        self.register_buffer("batch", torch.zeros(2, self.channels), persistent=False)
        self.register_buffer("sums", torch.zeros(4, self.channels), persistent=False)
        # n / (n - 1) of each channel: running variances are those of the population, as in torch.
        self.register_buffer("unbias", torch.ones(self.channels), persistent=False)
        self._known: set[int] = set()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def note_rows(self, place: slice, rows: int) -> None:
        """Remember over how many values a norm averages; does work at the first sight only, so never inside a graph."""
        if place.start not in self._known:
            self._known.add(place.start)
            self.unbias[place] = rows / max(1, rows - 1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Before forward: clear the sums."""
        self.sums.zero_()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def end(self) -> None:
        """After backward: running averages, and the gradients that the kernels left in the sums."""
        self.running[0].lerp_(self.batch[0], MOMENTUM)
        self.running[1].lerp_(self.batch[1] * self.unbias, MOMENTUM)
        self.bias.grad = self.sums[2]
        self.weight.grad = self.sums[3]


class TableNorm(nn.Module):  # type: ignore[misc]
    """One norm of a table. Returns its result twice, so that backward gets the two gradients apart and adds them in the
    kernel that reads them anyway."""

    def __init__(self, table: NormTable, start: int, channels: int, *, zero: bool) -> None:
        super().__init__()
        self._table = (table,)  # in a tuple, or it would be registered as a child of each of its norms
        self.place = slice(start, start + channels)
        self.zero = zero

    def forward(self, x: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = _NormAct.apply(x, shortcut, relu, self._table[0], self.place)
        return result

    def pooled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The norm, the ReLU, and the 3×3 maximum of stride 2, for images of even height and width."""
        result: tuple[Tensor, Tensor] = _NormPool.apply(x, self._table[0], self.place)
        return result


def _rows_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _launch(kernel: str, rows: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and sizes of a kernel over a matrix. The number of steps is a power of two: few variants to compile."""
    if rows * channels >= 2**31:
        raise UsageError(
            f"an activation of {rows} x {channels} values", hint="norms by hand count in 32 bits: use a smaller --batch"
        )
    tile = next(tile for least, tile in TILES[kernel] if rows * channels >= least)
    block = min(tile.channels, channels)
    columns = channels // block
    wanted = max(1, tile.programs * _multiprocessors() // columns)
    steps = 1
    while steps * tile.rows * wanted < rows:
        steps *= 2
    grid = (-(-rows // (tile.rows * steps)), columns)
    return grid, {"steps": steps, "C": channels, "R": tile.rows, "B": block, "num_warps": tile.warps}


@lru_cache
def _multiprocessors() -> int:
    return int(torch.cuda.get_device_properties().multi_processor_count) if torch.cuda.is_available() else 4


@dataclass(frozen=True, slots=True)
class _Vectors:
    """One norm's parts of the table's long vectors."""

    shift: Tensor
    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    total: Tensor
    square: Tensor
    dbias: Tensor
    dweight: Tensor


def _vectors(table: NormTable, place: slice) -> _Vectors:
    return _Vectors(
        table.running[0, place],
        table.weight[place],
        table.bias[place],
        *(table.batch[row, place] for row in range(2)),
        *(table.sums[row, place] for row in range(4)),
    )


def _forward_sums(x: Tensor, table: NormTable, place: slice) -> tuple[_Vectors, int, int]:
    """Run the sums of one norm; returns its vectors, rows and channels."""
    channels = x.shape[1]
    rows = x.numel() // channels
    table.note_rows(place, rows)
    v = _vectors(table, place)
    grid, sizes = _launch("sums", rows, channels)
    kernels.sums[grid](x, v.shift, v.total, v.square, rows, **sizes)
    return v, rows, channels


class _NormAct(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shortcut: Tensor | None, relu: bool, table: NormTable, place: slice
    ) -> tuple[Tensor, Tensor]:
        x = _rows_last(x)
        shortcut = None if shortcut is None else _rows_last(shortcut)
        v, rows, channels = _forward_sums(x, table, place)
        y = torch.empty_like(x)
        grid, sizes = _launch("apply", rows, channels)
        kernels.apply[grid](
            x, x if shortcut is None else shortcut, y, v.shift, v.weight, v.bias, v.total, v.square, v.mean, v.var,
            rows, EPS, SHORTCUT=shortcut is not None, RELU=relu, **sizes,
        )  # fmt: skip
        ctx.save_for_backward(x, y if shortcut is not None else None)
        ctx.table, ctx.place, ctx.relu = table, place, relu
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dy2: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        given = [_rows_last(d) for d in (dy, dy2) if d is not None]
        joined = y is not None
        if len(given) == 2 and not joined:
            given = [given[0] + given[1]]
        v = _vectors(ctx.table, ctx.place)
        channels = x.shape[1]
        rows = x.numel() // channels
        g = torch.empty_like(x) if joined else given[0]
        grid, sizes = _launch("back_sums_joined" if joined else "back_sums", rows, channels)
        kernels.back_sums[grid](
            given[0], given[-1], x, y if joined else x, g, v.weight, v.bias, v.mean, v.var, v.dbias, v.dweight,
            rows, EPS,
            SHORTCUT=joined, RELU=ctx.relu, TWO=len(given) == 2, POOL=False, H=0, W=0, **sizes,
        )  # fmt: skip
        dx = torch.empty_like(x)
        grid, sizes = _launch("back_input", rows, channels)
        kernels.back_input[grid](
            g, g, x, dx, v.weight, v.bias, v.mean, v.var, v.dbias, v.dweight, rows, EPS,
            MASK=ctx.relu and not joined, POOL=False, H=0, W=0, **sizes,
        )  # fmt: skip
        return dx, g if joined else None, None, None, None


class _NormPool(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, table: NormTable, place: slice) -> tuple[Tensor, Tensor]:
        x = _rows_last(x)
        v, rows, channels = _forward_sums(x, table, place)
        batch, _, height, width = x.shape
        y = x.new_empty(batch, height // 2, width // 2, channels).permute(0, 3, 1, 2)
        index = torch.empty_like(y, dtype=torch.uint8)
        grid, sizes = _launch("pool", rows // 4, channels)
        kernels.apply_pool[grid](
            x, y, index, v.shift, v.weight, v.bias, v.total, v.square, v.mean, v.var, rows, EPS,
            H=height, W=width, **sizes,
        )  # fmt: skip
        ctx.save_for_backward(x, index)
        ctx.table, ctx.place = table, place
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dy2: Tensor | None) -> tuple[Tensor | None, ...]:
        x, index = ctx.saved_tensors
        given = [_rows_last(d) for d in (dy, dy2) if d is not None]
        total = given[0] if len(given) == 1 else given[0] + given[1]
        v = _vectors(ctx.table, ctx.place)
        _, channels, height, width = x.shape
        rows = x.numel() // channels
        dx = torch.empty_like(x)
        grid, sizes = _launch("pool_back", rows, channels)
        kernels.back_sums[grid](
            total, index, x, x, dx, v.weight, v.bias, v.mean, v.var, v.dbias, v.dweight, rows, EPS,
            SHORTCUT=False, RELU=True, TWO=False, POOL=True, H=height, W=width, **sizes,
        )  # fmt: skip
        kernels.back_input[grid](
            total, index, x, dx, v.weight, v.bias, v.mean, v.var, v.dbias, v.dweight, rows, EPS,
            MASK=True, POOL=True, H=height, W=width, **sizes,
        )  # fmt: skip
        return dx, None, None
