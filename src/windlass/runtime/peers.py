"""Communication between the ranks of a run for a snapshot, on a separate process group.

A separate group on the CPU keeps snapshot traffic out of the device's queue and has its own deadline. Only the main
thread communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from windlass.errors import MachineError, UsageError, WindlassError
from windlass.node.sys.identity import own_environ
from windlass.runtime.place import find_place
from windlass.runtime.run import close_at_exit, close_group, first_line
from windlass.runtime.store import disk_error

T = TypeVar("T")

# Gloo connects every rank with every other one. Beyond this number, the job's own group is used.
GLOO_RANKS = 2048


class Peers:
    """One group of all ranks. With one rank, the methods return the same results without a group."""

    def __init__(self, *, rank: int, world_size: int, group: Any = None, device: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.group = group
        self._device = device

    @property
    def is_main(self) -> bool:
        """True on the rank that decides and writes for all."""
        return self.rank == 0

    def close(self, timeout_s: float) -> None:
        """End the group and its threads. No communication is possible afterwards."""
        held, self.group = [self.group], None
        close_group(timeout_s, held)

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the largest value of any rank, element by element. All ranks call it."""
        if self.world_size == 1:
            return list(values)
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.int64, device=self._device)
        try:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
            return [int(v) for v in tensor.tolist()]
        except RuntimeError as error:
            raise _lost(self.rank, error) from None

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, on every rank."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        try:
            dist.all_gather_object(values, value, group=self.group)
        except RuntimeError as error:
            raise _lost(self.rank, error) from None
        return values

    def collect(self, value: Any) -> list[Any]:
        """Return every rank's value on the main rank, and an empty list on the others."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] | None = [None] * self.world_size if self.is_main else None
        try:
            dist.gather_object(value, values, dst=0, group=self.group)
        except RuntimeError as error:
            raise _lost(self.rank, error) from None
        return values or []

    def deal(self, values: list[Any]) -> Any:
        """Return to each rank its element of the main rank's list."""
        if self.world_size == 1:
            return values[0]
        import torch.distributed as dist

        box: list[Any] = [None]
        try:
            dist.scatter_object_list(box, values if self.is_main else None, src=0, group=self.group)
        except RuntimeError as error:
            raise _lost(self.rank, error) from None
        return box[0]

    def tell_all(self, value: Any) -> Any:
        """Return the main rank's value, on every rank."""
        if self.world_size == 1:
            return value
        import torch.distributed as dist

        box = [value]
        try:
            dist.broadcast_object_list(box, src=0, group=self.group)
        except RuntimeError as error:
            raise _lost(self.rank, error) from None
        return box[0]


def on_main(peers: Peers, work: Callable[[], T], where: Path, verb: str) -> T:
    """Run `work` on the main rank and return its result on every rank. An error is raised on every rank.

    `where` and `verb` describe the disk access in an error.
    """
    answer: Any = None
    problem: WindlassError | None = None
    if peers.is_main:
        try:
            answer = work()
        except WindlassError as error:
            problem = error
        except OSError as error:
            problem = disk_error(error, where, verb)
    answer, problem = peers.tell_all((answer, problem))
    if problem is not None:
        raise problem
    result: T = answer
    return result


def meet(timeout_s: float) -> Peers:
    """Return the group of all ranks for snapshots.

    All ranks call it, in the same order as other calls that create groups.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        started = find_place(own_environ()).world_size
        if started > 1:
            raise UsageError(
                f"{started} ranks were started, but torch.distributed is not set up",
                hint="call windlass.init() before Snapshot.resume()",
            )
        return Peers(rank=0, world_size=1)
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return Peers(rank=0, world_size=1)
    if world > GLOO_RANKS and dist.get_backend() != "gloo":
        import torch

        return Peers(rank=rank, world_size=world, device=torch.accelerator.current_accelerator())
    peers = Peers(
        rank=rank, world_size=world, group=dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    )
    close_at_exit(peers.close)
    return peers


def _lost(rank: int, error: RuntimeError) -> MachineError:
    lost = MachineError(
        f"rank {rank} lost another rank while agreeing on a snapshot: {first_line(error)}",
        hint="another rank ended or hangs: read its log first",
    )
    lost.transient = True
    return lost
