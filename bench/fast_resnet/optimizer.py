"""SGD with momentum and fp32 masters in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from compiling import compiled


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
