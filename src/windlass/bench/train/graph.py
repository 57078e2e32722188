"""A step as one CUDA graph: where kernels are short, the host cannot launch them as fast as the device ends them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def captured(
    work: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor, *, rehearsals: int = 4
) -> Callable[[Tensor, Tensor], Tensor]:
    """`work` of two tensors, recorded once and replayed on copies of what it is given.

    The work really runs `rehearsals` times before it is recorded (compilers and library heuristics must have
    settled), so it must be one that may run more often than asked. All it allocates stays reserved for the replays.
    """
    still_first, still_second = (t.clone(memory_format=torch.preserve_format) for t in (first, second))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(rehearsals):
            work(still_first, still_second)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(still_first, still_second)

    def replay(new_first: Tensor, new_second: Tensor) -> Tensor:
        still_first.copy_(new_first)
        still_second.copy_(new_second)
        graph.replay()
        return result

    return replay
