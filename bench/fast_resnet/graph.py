"""A step as one CUDA graph: where kernels are short, the host cannot launch them as fast as the device ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def captured(work: Callable[..., Tensor | None], *inputs: Tensor, rehearsals: int = 4) -> Callable[..., Any]:
    """`work` of some tensors, recorded once and replayed on copies of what it is given.

    The work really runs `rehearsals` times before it is recorded (compilers and library heuristics must have
    settled), so it must be one that may run more often than asked. All it allocates stays reserved for the replays.
    """
    still = [t.clone(memory_format=torch.preserve_format) for t in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(rehearsals):
            work(*still)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(*still)

    def replay(*new: Tensor) -> Tensor | None:
        for kept, given in zip(still, new, strict=True):
            kept.copy_(given)
        graph.replay()
        return result

    return replay


@contextmanager
def rehearsed(state: Sequence[Tensor], on: bool) -> Iterator[None]:
    """Put the state back afterwards: rehearsals of a training step must not train."""
    kept = [t.detach().clone(memory_format=torch.preserve_format) for t in state] if on else []
    yield
    with torch.no_grad():
        for tensor, before in zip(state if on else (), kept, strict=True):
            tensor.copy_(before)
