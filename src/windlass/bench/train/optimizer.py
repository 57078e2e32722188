"""Optimizers with fp32 state, each one pass over memory: AdamW for the language model, SGD for ResNet.

Both are written as the plain formula and compiled. That beats torch's fused AdamW here because clipping and the
low-precision copy of the weight join the same pass: 30 bytes per parameter instead of 46.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from windlass.bench.train.device import compiled
from windlass.bench.train.product import Linear

BETAS = (0.9, 0.95)
EPS = 1e-8


def warm_learning_rate(peak: float, step: int, *, warmup: int = 10) -> float:
    """Rises linearly over the first steps, then stays: a cold Adam takes steps of full size on noise."""
    return peak * min(1.0, (step + 1) / warmup)


class AdamW:
    """AdamW with clipping by the total norm. Weights, gradients and moments are fp32; bf16 copies are written on the
    way."""

    def __init__(self, model: nn.Module, *, weight_decay: float, clip: float, compile: bool) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        copies = {id(m.weight): m for m in model.modules() if isinstance(m, Linear)}
        self._owners = [copies.get(id(p)) for p in self._parameters]
        self._first = [torch.zeros_like(_local(p)) for p in self._parameters]
        self._second = [torch.zeros_like(_local(p)) for p in self._parameters]
        self._decays = [weight_decay if p.dim() >= 2 else 0.0 for p in self._parameters]
        self._clip = clip
        self._steps = 0
        self._update: Callable[..., None] = compiled(_adamw, compile)
        self._update_with_copy: Callable[..., None] = compiled(_adamw_with_copy, compile)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, learning_rate: float) -> Tensor:
        """One update of every weight and of its low-precision copy; returns the norm of the gradient before
        clipping."""
        self._steps += 1
        gradients = [p.grad for p in self._parameters]
        norm = _whole(torch.nn.utils.get_total_norm(gradients, foreach=True))
        correction1, correction2 = (1 - beta**self._steps for beta in BETAS)
        # As tensors, or the compiled code would be made anew for every value of the learning rate.
        where = norm.device
        rate = torch.tensor(learning_rate / correction1, device="cpu").to(where, non_blocking=True)
        decay_rate = torch.tensor(learning_rate, device="cpu").to(where, non_blocking=True)
        root = torch.tensor(correction2**0.5, device="cpu").to(where, non_blocking=True)
        scale = torch.clamp(self._clip / (norm + 1e-6), max=1.0)
        for p, g, m, v, decay, owner in zip(
            self._parameters, gradients, self._first, self._second, self._decays, self._owners, strict=True
        ):
            state = (_local(p), _local(g), m, v, scale, rate, decay_rate * decay, root)
            low = owner.bf16_copy() if owner is not None else None
            if low is not None:
                self._update_with_copy(*state, low)
                continue
            self._update(*state)
            if owner is not None:
                owner.refresh()
        return norm


def _adamw(
    weight: Tensor, gradient: Tensor, m: Tensor, v: Tensor, scale: Tensor, rate: Tensor, decay: Tensor, root: Tensor
) -> None:
    """weight ← weight·(1 - decay) - rate·m / (√v / root + eps), with m and v the running means of g and g²."""
    g = gradient * scale
    m.lerp_(g, 1 - BETAS[0])
    v.lerp_(g * g, 1 - BETAS[1])
    weight.copy_(weight * (1 - decay) - rate * m / (v.sqrt() / root + EPS))


def _adamw_with_copy(weight: Tensor, *arguments: Any) -> None:
    *state, low = arguments
    _adamw(weight, *state)
    low.copy_(weight)


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; a plain tensor as it is."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()
    return local


def _whole(norm: Tensor) -> Tensor:
    full: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return full


class MasterSgd:
    """SGD with momentum for a model whose large weights live in bf16: the fp32 masters are here, the model holds
    copies.

    Compiled, the whole update is a few kernels whatever the number of weights; as loops of small copies it took 330
    of the 800 kernels of a ResNet-50 step. It takes no decision on the host, so it can be captured in a graph.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, learning_rate: float, momentum: float, decay: float, compile: bool
    ) -> None:
        self._weights = [p for p in parameters if p.requires_grad]
        # fp32 weights are their own masters.
        self._masters = [
            p.detach() if p.dtype == torch.float32 else p.detach().float().clone(memory_format=torch.preserve_format)
            for p in self._weights
        ]
        self._momenta = [torch.zeros_like(m) for m in self._masters]
        self._rule = (learning_rate, momentum, decay)
        self._update: Callable[..., None] = compiled(_sgd, compile)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Update masters from the gradients that are there, then the weights from the masters."""
        gradients = [p.grad for p in self._weights]
        low = [w.dtype != torch.float32 for w in self._weights]
        copies = [w.detach() for w, is_low in zip(self._weights, low, strict=True) if is_low]
        sources = [m for m, is_low in zip(self._masters, low, strict=True) if is_low]
        self._update(self._masters, gradients, self._momenta, copies, sources, *self._rule)

    def state(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [*(w.detach() for w in self._weights), *self._masters, *self._momenta]

    def zero_grad(self) -> None:
        for p in self._weights:
            p.grad = None


def _sgd(
    masters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    copies: list[Tensor],
    sources: list[Tensor],
    learning_rate: float,
    momentum: float,
    decay: float,
) -> None:
    wide = [g.float() for g in gradients]
    steps = torch._foreach_add(wide, masters, alpha=decay)
    torch._foreach_mul_(momenta, momentum)
    torch._foreach_add_(momenta, steps)
    torch._foreach_add_(masters, momenta, alpha=-learning_rate)
    if copies:
        torch._foreach_copy_(copies, sources)
