"""Batch norm with what follows it: the sum with a shortcut and the ReLU. Torch's own, or four Triton kernels by hand.

By hand there are two passes forward (sums; apply) and two backward (sums; input), and nothing between two of them but
memory. All norms of a network share one `NormTable`: their weights are one parameter, their sums one buffer that one kernel
clears per step, and their running averages are updated by one kernel per step. With a norm after each of 53 convolutions
this is what keeps a small batch from being a queue of tiny kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU wheels of torch come without it
    triton = None

EPS = 1e-5
MOMENTUM = 0.1
_PROGRAMS = 132 * 4
_ROWS = 64
_BLOCK = 64


class TorchNorm(nn.BatchNorm2d):  # type: ignore[misc]
    """The plain form: one module per norm, left to torch.compile to fuse."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> tuple[Tensor, Tensor]:
        y = super().forward(x)
        if shortcut is not None:
            y = y + shortcut
        y = y.relu() if relu else y
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

    @torch.no_grad()
    def note_rows(self, place: slice, rows: int) -> None:
        """Remember over how many values a norm averages; does work at the first sight only, so never inside a graph."""
        if place.start not in self._known:
            self._known.add(place.start)
            self.unbias[place] = rows / max(1, rows - 1)

    @torch.no_grad()
    def begin(self) -> None:
        """Before forward: clear the sums."""
        self.sums.zero_()

    @torch.no_grad()
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


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _sums(x, shift, total, square, rows, steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        c = tl.program_id(1) * B + tl.arange(0, B)
        k = tl.load(shift + c)[None, :]
        first = tl.zeros([R, B], tl.float32)
        second = tl.zeros([R, B], tl.float32)
        r = tl.program_id(0) * steps * R + tl.arange(0, R)
        for _ in range(steps):
            inside = (r < rows)[:, None]
            # Measured from the running mean, so that a large mean does not swallow a small variance.
            v = tl.load(x + r[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32) - k
            v = tl.where(inside, v, 0.0)
            first += v
            second += v * v
            r += R
        tl.atomic_add(total + c, tl.sum(first, 0))
        tl.atomic_add(square + c, tl.sum(second, 0))

    @triton.jit  # type: ignore[untyped-decorator]
    def _apply(  # type: ignore[no-untyped-def]
        x, shortcut, y, shift, weight, bias, total, square, mean_out, var_out, rows, eps,
        steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,  # noqa: N803
        SHORTCUT: tl.constexpr, RELU: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        c = tl.program_id(1) * B + tl.arange(0, B)
        d = tl.load(total + c) / rows
        var = tl.maximum(tl.load(square + c) / rows - d * d, 0.0)
        mean = tl.load(shift + c) + d
        if tl.program_id(0) == 0:
            tl.store(mean_out + c, mean)
            tl.store(var_out + c, var)
        a = tl.load(weight + c) / tl.sqrt(var + eps)
        b = (tl.load(bias + c) - mean * a)[None, :]
        a = a[None, :]
        r = tl.program_id(0) * steps * R + tl.arange(0, R)
        for _ in range(steps):
            inside = (r < rows)[:, None]
            at = r[:, None] * C + c[None, :]
            v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * a + b
            if SHORTCUT:
                v += tl.load(shortcut + at, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                v = tl.maximum(v, 0.0)
            tl.store(y + at, v.to(y.dtype.element_ty), mask=inside)
            r += R

    @triton.jit  # type: ignore[untyped-decorator]
    def _back_sums(  # type: ignore[no-untyped-def]
        dy, dy2, x, y, g_out, weight, bias, mean_in, var_in, dbias, dweight, rows, eps,
        steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,  # noqa: N803
        SHORTCUT: tl.constexpr, RELU: tl.constexpr, TWO: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        c = tl.program_id(1) * B + tl.arange(0, B)
        mean = tl.load(mean_in + c)
        rstd = 1.0 / tl.sqrt(tl.load(var_in + c) + eps)
        a = tl.load(weight + c) * rstd
        b = (tl.load(bias + c) - mean * a)[None, :]
        a, mean, rstd = a[None, :], mean[None, :], rstd[None, :]
        first = tl.zeros([R, B], tl.float32)
        second = tl.zeros([R, B], tl.float32)
        r = tl.program_id(0) * steps * R + tl.arange(0, R)
        for _ in range(steps):
            inside = (r < rows)[:, None]
            at = r[:, None] * C + c[None, :]
            g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            if TWO:
                g += tl.load(dy2 + at, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                if SHORTCUT:
                    g = tl.where(tl.load(y + at, mask=inside, other=0.0).to(tl.float32) > 0, g, 0.0)
                else:
                    g = tl.where(v * a + b > 0, g, 0.0)
            if SHORTCUT:
                tl.store(g_out + at, g.to(g_out.dtype.element_ty), mask=inside)
            first += g
            second += g * ((v - mean) * rstd)
            r += R
        tl.atomic_add(dbias + c, tl.sum(first, 0))
        tl.atomic_add(dweight + c, tl.sum(second, 0))

    @triton.jit  # type: ignore[untyped-decorator]
    def _back_input(  # type: ignore[no-untyped-def]
        dy, x, dx, weight, bias, mean_in, var_in, dbias, dweight, rows, eps,
        steps: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr, MASK: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        c = tl.program_id(1) * B + tl.arange(0, B)
        mean = tl.load(mean_in + c)
        rstd = 1.0 / tl.sqrt(tl.load(var_in + c) + eps)
        a = tl.load(weight + c) * rstd
        b = (tl.load(bias + c) - mean * a)[None, :]
        # dx = a·(g - db/n - x̂·dw/n), with all that does not change along the rows taken together.
        slope = rstd * tl.load(dweight + c) / rows
        offset = (tl.load(dbias + c) / rows - mean * slope)[None, :]
        a, slope = a[None, :], slope[None, :]
        r = tl.program_id(0) * steps * R + tl.arange(0, R)
        for _ in range(steps):
            inside = (r < rows)[:, None]
            at = r[:, None] * C + c[None, :]
            g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            if MASK:
                g = tl.where(v * a + b > 0, g, 0.0)
            tl.store(dx + at, (a * (g - offset - v * slope)).to(dx.dtype.element_ty), mask=inside)
            r += R


def _rows_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _launch(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """A grid of about four programs per multiprocessor, each with whole steps of rows."""
    channels = x.shape[1]
    rows = x.numel() // channels
    columns = channels // _BLOCK
    steps = max(1, -(-rows // (_ROWS * max(1, _PROGRAMS // columns))))
    grid = (-(-rows // (_ROWS * steps)), columns)
    return grid, {"rows": rows, "steps": steps, "C": channels, "R": _ROWS, "B": _BLOCK}


class _NormAct(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shortcut: Tensor | None, relu: bool, table: NormTable, place: slice
    ) -> tuple[Tensor, Tensor]:
        x = _rows_last(x)
        shortcut = None if shortcut is None else _rows_last(shortcut)
        grid, shape = _launch(x)
        table.note_rows(place, shape["rows"])
        shift, weight, bias = table.running[0, place], table.weight[place], table.bias[place]
        total, square = table.sums[0, place], table.sums[1, place]
        mean, var = table.batch[0, place], table.batch[1, place]
        _sums[grid](x, shift, total, square, **shape)
        y = torch.empty_like(x)
        _apply[grid](
            x, x if shortcut is None else shortcut, y, shift, weight, bias, total, square, mean, var, eps=EPS,
            SHORTCUT=shortcut is not None, RELU=relu, **shape,
        )  # fmt: skip
        ctx.save_for_backward(x, y if shortcut is not None else None)
        ctx.table, ctx.place, ctx.relu = table, place, relu
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dy2: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        table, place = ctx.table, ctx.place
        given = [_rows_last(d) for d in (dy, dy2) if d is not None]
        has_shortcut = y is not None
        if len(given) == 2 and not has_shortcut:
            given = [given[0] + given[1]]
        grid, shape = _launch(x)
        weight, bias = table.weight[place], table.bias[place]
        mean, var = table.batch[0, place], table.batch[1, place]
        dbias, dweight = table.sums[2, place], table.sums[3, place]
        g = torch.empty_like(x) if has_shortcut else given[0]
        _back_sums[grid](
            given[0], given[-1], x, y if has_shortcut else x, g, weight, bias, mean, var, dbias, dweight, eps=EPS,
            SHORTCUT=has_shortcut, RELU=ctx.relu, TWO=len(given) == 2, **shape,
        )  # fmt: skip
        dx = torch.empty_like(x)
        _back_input[grid](
            g, x, dx, weight, bias, mean, var, dbias, dweight, eps=EPS, MASK=ctx.relu and not has_shortcut, **shape
        )
        return dx, g if has_shortcut else None, None, None, None
