"""The ranks of a run talking to each other for a snapshot, on process groups of their own.

A group of its own keeps snapshot traffic out of the order of the user's collectives, and lets a background thread
talk while the main thread trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from windlass.errors import MachineError, UsageError
from windlass.runtime.run import first_line

# Gloo connects every rank with every other one. Beyond this the job's own group is used, and saves block.
GLOO_RANKS = 2048


class Peers:
    """One group of all ranks; with one rank, nothing but the same answers."""

    def __init__(self, *, rank: int, world_size: int, group: Any = None, device: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.group = group
        self._device = device

    @property
    def is_main(self) -> bool:
        """True on the rank that decides and writes for all."""
        return self.rank == 0

    def largest(self, values: Sequence[int]) -> list[int]:
        """Element by element, the largest value of any rank. All ranks call it."""
        if self.world_size == 1:
            return list(values)
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.int64, device=self._device)
        try:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
            return [int(v) for v in tensor.tolist()]
        except RuntimeError as error:
            raise _lost(self.rank, error) from error

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        try:
            dist.all_gather_object(values, value, group=self.group)
        except RuntimeError as error:
            raise _lost(self.rank, error) from error
        return values

    def collect(self, value: Any) -> list[Any]:
        """Every rank's value on the main rank; an empty list elsewhere."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] | None = [None] * self.world_size if self.is_main else None
        try:
            dist.gather_object(value, values, dst=0, group=self.group)
        except RuntimeError as error:
            raise _lost(self.rank, error) from error
        return values or []

    def tell_all(self, value: Any) -> Any:
        """The main rank's value, on every rank."""
        if self.world_size == 1:
            return value
        import torch.distributed as dist

        box = [value]
        try:
            dist.broadcast_object_list(box, src=0, group=self.group)
        except RuntimeError as error:
            raise _lost(self.rank, error) from error
        return box[0]


def meet(expected_world: int, timeout_s: float) -> tuple[Peers, Peers]:
    """Groups for the main thread and for the background one. All ranks call it, in the same order."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        if expected_world > 1:
            raise UsageError(
                f"{expected_world} ranks were started, but torch.distributed is not set up",
                hint="call windlass.init() before Snapshot.resume()",
            )
        alone = Peers(rank=0, world_size=1)
        return alone, alone
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        alone = Peers(rank=0, world_size=1)
        return alone, alone
    if world > GLOO_RANKS:
        import torch

        device = torch.device("cpu") if dist.get_backend() == "gloo" else torch.accelerator.current_accelerator()
        shared = Peers(rank=rank, world_size=world, device=device)
        return shared, shared
    limit = timedelta(seconds=timeout_s)
    main, background = (dist.new_group(backend="gloo", timeout=limit) for _ in range(2))
    return (
        Peers(rank=rank, world_size=world, group=main),
        Peers(rank=rank, world_size=world, group=background),
    )


def _lost(rank: int, error: RuntimeError) -> MachineError:
    lost = MachineError(
        f"rank {rank} lost another rank while agreeing on a snapshot: {first_line(error)}",
        hint="another rank ended or hangs; its log comes first",
    )
    lost.transient = True
    return lost
