"""Optimizers with fp32 state: AdamW for the language model, and SGD over fp32 masters of bf16 weights for ResNet."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from windlass.bench.train.device import Device


def adamw(model: nn.Module, *, learning_rate: float, weight_decay: float, device: Device) -> torch.optim.Optimizer:
    """AdamW over the fp32 masters; norms are not decayed. Fused: one pass over weight, gradient and both moments."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = device.kind in {"cuda", "xpu", "cpu"}
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=fused)


def warm_learning_rate(peak: float, step: int, *, warmup: int = 10) -> float:
    """Rises linearly over the first steps, then stays: a cold Adam takes steps of full size on noise."""
    return peak * min(1.0, (step + 1) / warmup)


class MasterSgd:
    """SGD with momentum for a model whose large weights live in bf16: the fp32 masters are here, the model holds copies.

    A few multi-tensor kernels whatever the number of weights, and no host decision, so it can be captured in a graph.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, learning_rate: float, momentum: float, decay: float) -> None:
        self._weights = [p for p in parameters if p.requires_grad]
        self._masters = [p.detach().float().clone(memory_format=torch.preserve_format) for p in self._weights]
        self._gradients = [torch.zeros_like(m) for m in self._masters]
        self._momenta = [torch.zeros_like(m) for m in self._masters]
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._decay = decay

    @torch.no_grad()
    def step(self) -> None:
        """Update masters from the gradients that are there, then the weights from the masters."""
        given: list[Tensor] = [p.grad for p in self._weights]
        torch._foreach_copy_(self._gradients, given)
        torch._fused_sgd_(
            self._masters,
            self._gradients,
            self._momenta,
            weight_decay=self._decay,
            momentum=self._momentum,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        torch._foreach_copy_(self._weights, self._masters)

    def zero_grad(self) -> None:
        for p in self._weights:
            p.grad = None
