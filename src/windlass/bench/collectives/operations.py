"""The collectives of torch, each with inputs of known result and a count of wrong elements.

Every element is a small whole number that depends on its index and its rank with a period of five. So the right answer
of any collective is a table of five values, exact in every type.

torch reduces and broadcasts only in place. Out of place is therefore a copy and then the collective, and a torch user
pays for both. NCCL's own out-of-place call has no such copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from windlass.errors import UsageError

Placement = Literal["out-of-place", "in-place"]
PLACEMENTS: tuple[Placement, ...] = ("out-of-place", "in-place")

_PERIOD = 5
_BLOCK = _PERIOD << 19


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
    """The inputs of one measurement: the ranks, the reduction, and two buffers of `count` elements."""

    rank: int
    ranks: int
    root: int
    redop: str
    send: Any
    recv: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One collective on given buffers: `fill` the inputs, `call` it, and count the `wrong` elements afterwards."""

    fill: Callable[[], None]
    call: Callable[[], None]
    wrong: Callable[[], int]


def share(op: str, count: int, ranks: int, element_bytes: int) -> tuple[int, int]:
    """Return (elements in the larger buffer, elements that the call names), rounded as in nccl-tests.

    Parts begin at multiples of 16 bytes.
    """
    if op in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}:
        part = count // ranks
        step = max(1, 16 // element_bytes)
        part = part // step * step
        return part * ranks, part
    return count, count


def values(rank: int, start: int) -> list[int]:
    """Return the five values that repeat in a rank's elements from `start`."""
    return [((start + index) * 7 + rank * 3) % _PERIOD for index in range(_PERIOD)]


def reduced(ranks: int, start: int, redop: str) -> list[float]:
    """Return the five values after a reduction over all ranks."""
    columns = list(zip(*(values(rank, start) for rank in range(ranks)), strict=True))
    if redop == "avg":
        return [sum(column) / ranks for column in columns]
    choose: dict[str, Callable[[tuple[int, ...]], int]] = {"sum": sum, "min": min, "max": max}
    return [float(choose[redop](column)) for column in columns]


def fill_with(tensor: Any, table: list[Any]) -> None:
    """Fill the tensor with repetitions of the table."""
    import torch

    block = torch.tensor(table, dtype=torch.float64 if tensor.device.type == "cpu" else torch.float32)
    block = block.to(tensor.dtype).to(tensor.device).repeat(min(_BLOCK, tensor.numel() + _PERIOD) // _PERIOD + 1)
    step = block.numel() // _PERIOD * _PERIOD
    for index in range(0, tensor.numel(), step):
        part = tensor[index : index + step]
        part.copy_(block[: part.numel()])


def count_wrong(tensor: Any, table: list[float], ranks: int) -> int:
    """Count the elements that differ from the table by more than rounding explains."""
    import torch

    if tensor.numel() == 0:
        return 0
    wide = torch.float32 if tensor.device.type == "xpu" else torch.float64
    block = torch.tensor(table, dtype=wide, device=tensor.device)
    block = block.repeat(min(_BLOCK, tensor.numel() + _PERIOD) // _PERIOD + 1)
    if not tensor.dtype.is_floating_point:
        block = block.to(torch.int64).to(tensor.dtype).to(wide)
        slack = torch.zeros((), dtype=wide, device=tensor.device)
    else:
        eps = torch.finfo(tensor.dtype).eps
        exact = max(abs(value) for value in table) * eps < 0.5 and all(float(v).is_integer() for v in table)
        slack = block.abs() * (0.0 if exact else eps * (ranks + 1))
    step = block.numel() // _PERIOD * _PERIOD
    wrong = 0
    for index in range(0, tensor.numel(), step):
        part = tensor[index : index + step].to(wide)
        room = slack if slack.dim() == 0 else slack[: part.numel()]
        wrong += int((~((part - block[: part.numel()]).abs() <= room)).sum().item())
    return wrong


def make_operation(op: str, placement: Placement, s: Buffers) -> Operation | None:
    """Return the collective on these buffers, or None if it has no such placement."""
    makers = {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "all_to_all": _all_to_all,
        "gather": _gather,
        "scatter": _scatter,
        "sendrecv": _sendrecv,
    }
    return makers[op](s, placement == "in-place")


def reduction(redop: str) -> Any:
    import torch.distributed as dist

    names = {"sum": "SUM", "avg": "AVG", "min": "MIN", "max": "MAX"}
    if redop not in names:
        raise UsageError(f"unknown reduction {redop!r}", hint=f"known: {', '.join(names)}")
    return getattr(dist.ReduceOp, names[redop])


def _all_reduce(s: Buffers, in_place: bool) -> Operation:
    import torch.distributed as dist

    op = reduction(s.redop)

    def call() -> None:
        if not in_place:
            s.recv.copy_(s.send)
        dist.all_reduce(s.recv, op)

    return Operation(
        fill=lambda: fill_with(s.recv if in_place else s.send, values(s.rank, 0)),
        call=call,
        wrong=lambda: count_wrong(s.recv, reduced(s.ranks, 0, s.redop), s.ranks),
    )


def _reduce(s: Buffers, in_place: bool) -> Operation:
    import torch.distributed as dist

    op = reduction(s.redop)

    def call() -> None:
        if not in_place:
            s.recv.copy_(s.send)
        dist.reduce(s.recv, dst=s.root, op=op)

    return Operation(
        fill=lambda: fill_with(s.recv if in_place else s.send, values(s.rank, 0)),
        call=call,
        wrong=lambda: count_wrong(s.recv, reduced(s.ranks, 0, s.redop), s.ranks) if s.rank == s.root else 0,
    )


def _broadcast(s: Buffers, in_place: bool) -> Operation:
    import torch.distributed as dist

    def call() -> None:
        if not in_place and s.rank == s.root:
            s.recv.copy_(s.send)
        dist.broadcast(s.recv, src=s.root)

    return Operation(
        fill=lambda: fill_with(s.recv if in_place else s.send, values(s.rank, 0)),
        call=call,
        wrong=lambda: count_wrong(s.recv, [float(v) for v in values(s.root, 0)], s.ranks),
    )


def _parts(tensor: Any, ranks: int) -> list[Any]:
    return list(tensor.chunk(ranks))


def _wrong_gathered(s: Buffers) -> int:
    """Count wrong elements after a gather. Part r holds the five values of rank r from the beginning."""
    return sum(
        count_wrong(part, [float(v) for v in values(rank, 0)], s.ranks)
        for rank, part in enumerate(_parts(s.recv, s.ranks))
    )


def _all_gather(s: Buffers, in_place: bool) -> Operation:
    import torch.distributed as dist

    mine = _parts(s.recv if in_place else s.send, s.ranks)[s.rank if in_place else 0]
    return Operation(
        fill=lambda: fill_with(mine, values(s.rank, 0)),
        call=lambda: dist.all_gather_into_tensor(s.recv, mine),
        wrong=lambda: _wrong_gathered(s),
    )


def _reduce_scatter(s: Buffers, in_place: bool) -> Operation:
    import torch.distributed as dist

    op = reduction(s.redop)
    whole = s.recv if in_place else s.send
    mine = _parts(s.recv, s.ranks)[s.rank if in_place else 0]
    start = mine.numel() * s.rank
    return Operation(
        fill=lambda: fill_with(whole, values(s.rank, 0)),
        call=lambda: dist.reduce_scatter_tensor(mine, whole, op),
        wrong=lambda: count_wrong(mine, reduced(s.ranks, start, s.redop), s.ranks),
    )


def _all_to_all(s: Buffers, in_place: bool) -> Operation | None:
    import torch.distributed as dist

    if in_place:
        return None
    part = s.recv.numel() // s.ranks

    def wrong() -> int:
        table = [[float(v) for v in values(rank, s.rank * part)] for rank in range(s.ranks)]
        return sum(count_wrong(got, table[r], s.ranks) for r, got in enumerate(_parts(s.recv, s.ranks)))

    return Operation(
        fill=lambda: fill_with(s.send, values(s.rank, 0)),
        call=lambda: dist.all_to_all_single(s.recv, s.send),
        wrong=wrong,
    )


def _gather(s: Buffers, in_place: bool) -> Operation:
    import torch.distributed as dist

    mine = _parts(s.recv if in_place else s.send, s.ranks)[s.rank if in_place else 0]
    places = _parts(s.recv, s.ranks) if s.rank == s.root else None
    return Operation(
        fill=lambda: fill_with(mine, values(s.rank, 0)),
        call=lambda: dist.gather(mine, places, dst=s.root),
        wrong=lambda: _wrong_gathered(s) if s.rank == s.root else 0,
    )


def _scatter(s: Buffers, in_place: bool) -> Operation:
    import torch.distributed as dist

    whole = s.recv if in_place else s.send
    mine = _parts(s.recv, s.ranks)[s.rank if in_place else 0]
    parts = _parts(whole, s.ranks) if s.rank == s.root else None
    start = mine.numel() * s.rank
    return Operation(
        fill=lambda: fill_with(whole, values(s.root, 0)) if s.rank == s.root else None,
        call=lambda: dist.scatter(mine, parts, src=s.root),
        wrong=lambda: count_wrong(mine, [float(v) for v in values(s.root, start)], s.ranks),
    )


def _sendrecv(s: Buffers, in_place: bool) -> Operation | None:
    """Send from every rank to the next rank, and receive from the previous one."""
    import torch.distributed as dist

    if in_place:
        return None
    after, before = (s.rank + 1) % s.ranks, (s.rank - 1) % s.ranks

    def call() -> None:
        if s.ranks == 1:
            s.recv.copy_(s.send)
            return
        pair = [dist.P2POp(dist.isend, s.send, after), dist.P2POp(dist.irecv, s.recv, before)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    return Operation(
        fill=lambda: fill_with(s.send, values(s.rank, 0)),
        call=call,
        wrong=lambda: count_wrong(s.recv, [float(v) for v in values(before, 0)], s.ranks),
    )
