"""Matrix products with fp32 master weights: fp32, bf16, or fp8.

`Linear.weight` is always the fp32 master that the optimizer updates. The product sees a copy in low precision, made
once per optimizer step (`refresh`), not once per use: with 16 micro-steps that is 16 times less conversion. Under
FSDP there is no standing copy: FSDP gathers the weight in bf16 and the product takes that.

Weight gradients are fp32. In micro-steps after the first they are added inside the product's own epilogue
(`torch.addmm` with an fp32 output and bf16 inputs) instead of by a separate pass over all gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fast_llama.pieces import Pieces
from windlass.bench.train.options import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductRules:
    """How every product of a model computes. `fp8` holds the types for values and for gradients."""

    precision: Precision
    fp8: tuple[torch.dtype, torch.dtype] | None = None
    standing_copies: bool = True


class Accumulation:
    """Whether backward may add into `weight.grad` itself. Off where hooks must see the gradient (the last step of
    DDP)."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place


class Linear(nn.Module):  # type: ignore[misc]
    """y = x Wᵀ without a bias, for x of shape (..., inputs)."""

    def __init__(
        self, inputs: int, outputs: int, rules: ProductRules, pieces: Pieces, accumulation: Accumulation
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.rules = rules
        self.pieces = pieces
        self.accumulation = accumulation
        # Plain attributes, not buffers: they are no part of the state and must not be moved, sharded or saved.
        self.copy: tuple[Tensor, ...] | None = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def refresh(self) -> None:
        """Make the standing copy from the master; in place where it exists, so that captured graphs see it."""
        if not self.rules.standing_copies or self.rules.precision == "fp32":
            return
        if self.copy is None:
            self.copy = self._low(self.weight)
        elif self.rules.precision == "bf16":
            self.copy[0].copy_(self.weight)
        else:
            self.pieces.to_fp8_into(self.weight, *self.copy)

    def _low(self, weight: Tensor) -> tuple[Tensor, ...]:
        if self.rules.precision == "bf16":
            return (weight.to(torch.bfloat16),)
        assert self.rules.fp8 is not None
        return self.pieces.to_fp8(weight, self.rules.fp8[0])

    def bf16_copy(self) -> Tensor | None:
        """The standing copy where it is plain bf16, for an optimizer that writes it in its own pass."""
        return self.copy[0] if self.copy is not None and self.rules.precision == "bf16" else None

    def low_copy(self) -> tuple[Tensor, ...]:
        """The weight as the product wants it: the standing copy, or one made now."""
        if self.copy is not None:
            return self.copy
        with torch.no_grad():
            return self._low(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.rules.precision == "fp32":
            return nn.functional.linear(x, self.weight)
        flat = x.reshape(-1, x.shape[-1])
        if self.rules.precision == "bf16":
            y = _Bf16Product.apply(flat, self.weight, self)
        else:
            y = _Fp8Product.apply(flat, self.weight, self)
        return y.view(*x.shape[:-1], -1)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, with the sum kept in total's type: no rounding of the partial product where the device can."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif total.is_cuda and total.dtype == torch.float32:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def new_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b in `dtype`."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.to(dtype) @ b.to(dtype)


class _Bf16Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, owner: Linear) -> Tensor:
        (low,) = owner.low_copy()
        ctx.save_for_backward(x, low)
        ctx.weight = weight
        ctx.owner = owner
        return x @ low.t()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, low = ctx.saved_tensors
        dw: Tensor | None = None
        if ctx.owner.accumulation.in_place and ctx.weight.grad is not None:
            add_product(ctx.weight.grad, dy.t(), x)
        else:
            dw = new_product(dy.t(), x, ctx.weight.dtype)
        return dy @ low, dw, None


class _Fp8Product(torch.autograd.Function):  # type: ignore[misc]
    """Three fp8 products. What is kept for backward is x already transposed, in fp8: half the bytes of bf16.

    The weight's copy is asked for again in backward, not kept: under FSDP a kept copy would hold the whole model.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, owner: Linear) -> Tensor:
        w, _, w_scale = owner.low_copy()
        x8, x8t, x_scale = owner.pieces.to_fp8(x.detach(), _types(owner)[0])
        ctx.save_for_backward(x8t, x_scale)
        ctx.weight = weight
        ctx.owner = owner
        return _scaled(x8, w, x_scale, w_scale, fast=True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x8t, x_scale = ctx.saved_tensors
        owner: Linear = ctx.owner
        _, wt, w_scale = owner.low_copy()
        dy8, dy8t, dy_scale = owner.pieces.to_fp8(dy, _types(owner)[1])
        dx = _scaled(dy8, wt, dy_scale, w_scale, fast=False)
        dw = _scaled(dy8t, x8t, dy_scale, x_scale, fast=False)
        if owner.accumulation.in_place and ctx.weight.grad is not None:
            owner.pieces.add_into(ctx.weight.grad, dw)
            return dx, None, None
        return dx, dw.to(ctx.weight.dtype), None


def _types(owner: Linear) -> tuple[torch.dtype, torch.dtype]:
    assert owner.rules.fp8 is not None
    return owner.rules.fp8


def _scaled(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, *, fast: bool) -> Tensor:
    """a @ bᵀ for two row-major fp8 matrices, in bf16."""
    out: Tensor = torch._scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16, use_fast_accum=fast
    )
    return out


def embed(tokens: Tensor, table: Tensor, accumulation: Accumulation) -> Tensor:
    """Rows of the table, one per token."""
    rows: Tensor = _Embedding.apply(tokens, table, accumulation)
    return rows


class _Embedding(torch.autograd.Function):  # type: ignore[misc]
    """Its gradient touches a few rows: added where they stand, it need not be made as a table of zeros first."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor, accumulation: Accumulation) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.table, ctx.accumulation = table, accumulation
        return nn.functional.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor | None, None]:
        (tokens,) = ctx.saved_tensors
        in_place = ctx.accumulation.in_place and ctx.table.grad is not None
        total = ctx.table.grad if in_place else torch.zeros_like(ctx.table)
        total.index_add_(0, tokens.reshape(-1), dy.reshape(-1, dy.shape[-1]).to(total.dtype))
        return None, None if in_place else total, None
