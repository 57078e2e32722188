"""What happens between two matrix products, each piece one small pure function that torch.compile turns into one or two
kernels.

Why pieces and not whole blocks: a product is a boundary for fusion anyway, and leaving the products outside the
compiler lets `product` choose their layout, add weight gradients in place, and share one compiled piece between all
layers (the compiler sees seven tiny graphs, in seconds, instead of a block).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from compiling import compiled
from fast_llama.kernels import kernels_available, swiglu_by_hand


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """The elementwise functions of the model, compiled or not."""

    rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    rotate: Callable[..., tuple[Tensor, Tensor, Tensor]]
    swiglu: Callable[..., Tensor]
    softmax_loss: Callable[..., tuple[Tensor, Tensor]]
    to_fp8: Callable[..., tuple[Tensor, Tensor, Tensor]]
    to_fp8_into: Callable[..., None]
    add_into: Callable[[Tensor, Tensor], None]
    add_scaled_into: Callable[[Tensor, Tensor, Tensor], None]


def make_pieces(*, compile: bool) -> Pieces:
    """The pieces, each compiled once per shape it meets."""
    if compile:
        # to_fp8 meets every weight, value and gradient shape of the model; past the limit torch falls back to eager,
        # silently.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return Pieces(
        rms_norm=compiled(_rms_norm, compile),
        add_rms_norm=compiled(_add_rms_norm, compile),
        rotate=compiled(_rotate, compile),
        swiglu=swiglu_by_hand if compile and kernels_available() else compiled(_swiglu, compile),
        softmax_loss=compiled(_softmax_loss, compile),
        to_fp8=compiled(_to_fp8, compile),
        to_fp8_into=compiled(_to_fp8_into, compile),
        add_into=compiled(_add_into, compile),
        add_scaled_into=compiled(_add_scaled_into, compile),
    )


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def _add_rms_norm(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual sum and its norm together: the sum is in registers when the norm needs it."""
    total = x + branch
    return total, _rms_norm(total, weight, eps)


def _rotate(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split (batch, positions, heads + 2 kv_heads, width) into q, k and v, with q and k rotated.

    v is copied on purpose: as a view it would keep all of qkv alive until the backward pass. And all three are returned
    contiguous, to be transposed by the caller: compiled code copies the gradient of an output that is not.
    """
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=2)
    return _turn(q, cos, sin), _turn(k, cos, sin), v.contiguous()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def _softmax_loss(logits: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Sum of the cross entropies times `weight`, and its gradient by the logits in the logits' type."""
    wide = logits.float()
    log_sum = torch.logsumexp(wide, dim=-1)
    picked = wide.gather(-1, targets[:, None])[:, 0]
    loss = (log_sum - picked).sum() * weight
    hit = torch.arange(logits.shape[-1], device=logits.device)[None, :] == targets[:, None]
    gradient = ((wide - log_sum[:, None]).exp() - hit.float()) * weight
    return loss, gradient.to(logits.dtype)


def _to_fp8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix in fp8, its transpose in fp8, and the scale that undoes both.

    One scale per tensor, from its own largest value (no history, so no stale scale after a jump). Both layouts at once,
    because the fp8 units of Hopper and MI300 want the summed dimension contiguous in both operands, and backward sums
    over the other one.
    """
    largest = x.abs().amax().float().clamp(min=1e-12)
    scale = torch.finfo(dtype).max / largest
    small = (x.float() * scale).to(dtype)
    return small, small.t().contiguous(), 1.0 / scale


def _to_fp8_into(x: Tensor, small: Tensor, turned: Tensor, scale: Tensor) -> None:
    """As _to_fp8, into tensors that are there already."""
    new_small, new_turned, new_scale = _to_fp8(x, small.dtype)
    small.copy_(new_small)
    turned.copy_(new_turned)
    scale.copy_(new_scale)


def _add_into(total: Tensor, part: Tensor) -> None:
    """total += part for parts in a narrower type; compiled it reads at the full rate of the memory, torch's own at
    2/3."""
    total.add_(part)


def _add_scaled_into(total: Tensor, part: Tensor, scale: Tensor) -> None:
    total.add_(part * scale)
