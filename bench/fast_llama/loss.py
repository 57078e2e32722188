"""Cross entropy of a large vocabulary without ever holding all logits.

The head's product, the loss and both gradients are made chunk by chunk in the forward pass; what is kept is the
gradient by the inputs (as large as the inputs) and by the head's weight. At 4096 tokens and 32,000 words this saves
about 1 GB, at 128,256 words 4 GB, and each chunk's logits are read while they are still near.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fast_llama.pieces import Pieces
from fast_llama.product import Linear, add_product, new_product


def chunked_loss(x: Tensor, head: Linear, targets: Tensor, pieces: Pieces, chunk: int) -> Tensor:
    """Mean cross entropy of head(x) against `targets`, over all tokens."""
    low = head.weight if head.rules.precision == "fp32" else _bf16_copy(head)
    loss: Tensor = _ChunkedLoss.apply(
        x.reshape(-1, x.shape[-1]), head.weight, low, targets.reshape(-1), head, pieces, chunk
    )
    return loss


def _bf16_copy(head: Linear) -> Tensor:
    if head.rules.precision != "bf16":
        raise TypeError("the head multiplies in bf16 or fp32: its logits decide the loss")
    return head.low_copy()[0]


class _ChunkedLoss(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, low: Tensor, targets: Tensor, head: Linear, pieces: Pieces, chunk: int
    ) -> Tensor:
        dx = torch.empty_like(x)
        dw: Tensor | None = None
        losses = []
        for part, part_dx, part_targets in zip(x.split(chunk), dx.split(chunk), targets.split(chunk), strict=True):
            part_loss, dlogits = pieces.softmax_loss(part @ low.t(), part_targets, 1.0 / len(targets))
            losses.append(part_loss)
            torch.mm(dlogits, low, out=part_dx)
            if dw is None:
                dw = new_product(dlogits.t(), part, torch.float32)
            else:
                add_product(dw, dlogits.t(), part)
        ctx.save_for_backward(dx, dw)
        ctx.weight, ctx.head = weight, head
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw = ctx.saved_tensors
        rest = (None,) * 5
        if ctx.head.accumulation.in_place and ctx.weight.grad is not None:
            ctx.head.pieces.add_scaled_into(ctx.weight.grad, dw, gradient)
            return dx * gradient.to(dx.dtype), None, *rest
        return dx * gradient.to(dx.dtype), (dw * gradient).to(ctx.weight.dtype), *rest
