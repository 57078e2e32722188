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


def make_operation(op: str, placement: Placement, b: Buffers) -> Operation | None:
    """Return the collective on these buffers, or None if it has no such placement."""
    in_place = placement == "in-place"
    if op in {"all_to_all", "sendrecv"}:
        return None if in_place else _all_to_all(b) if op == "all_to_all" else _sendrecv(b)
    if op in {"all_gather", "gather"}:
        return _gather(op, b, in_place)
    return _scatter(op, b, in_place) if op in {"reduce_scatter", "scatter"} else _reduce(op, b, in_place)


def reduction(redop: str) -> Any:
    import torch.distributed as dist

    names = {"sum": "SUM", "avg": "AVG", "min": "MIN", "max": "MAX"}
    if redop not in names:
        raise UsageError(f"unknown reduction {redop!r}", hint=f"known: {', '.join(names)}")
    return getattr(dist.ReduceOp, names[redop])


def _reduce(op: str, b: Buffers, in_place: bool) -> Operation:
    """all_reduce, reduce and broadcast: every rank has buffers of the same size."""
    import torch.distributed as dist

    redop = reduction(b.redop)
    calls: dict[str, Callable[[], None]] = {
        "all_reduce": lambda: dist.all_reduce(b.recv, redop),
        "reduce": lambda: dist.reduce(b.recv, dst=b.root, op=redop),
        "broadcast": lambda: dist.broadcast(b.recv, src=b.root),
    }
    run, sends = calls[op], op == "broadcast"
    copies = not in_place and (not sends or b.rank == b.root)
    right = _exact(b.root, 0) if sends else reduced(b.ranks, 0, b.redop)

    def call() -> None:
        if copies:
            b.recv.copy_(b.send)
        run()

    return Operation(
        fill=lambda: fill_with(b.recv if in_place else b.send, values(b.rank, 0)),
        call=call,
        wrong=lambda: 0 if op == "reduce" and b.rank != b.root else count_wrong(b.recv, right, b.ranks),
    )


def _parts(tensor: Any, ranks: int) -> list[Any]:
    return list(tensor.chunk(ranks))


def _exact(rank: int, start: int) -> list[float]:
    return [float(value) for value in values(rank, start)]


def _gather(op: str, b: Buffers, in_place: bool) -> Operation:
    """all_gather and gather. Part r of the result holds the five values of rank r from the beginning."""
    import torch.distributed as dist

    mine = _parts(b.recv if in_place else b.send, b.ranks)[b.rank if in_place else 0]
    everywhere = op == "all_gather"
    places = _parts(b.recv, b.ranks) if b.rank == b.root else None

    def wrong() -> int:
        parts = _parts(b.recv, b.ranks) if everywhere or b.rank == b.root else []
        return sum(count_wrong(part, _exact(rank, 0), b.ranks) for rank, part in enumerate(parts))

    return Operation(
        fill=lambda: fill_with(mine, values(b.rank, 0)),
        call=(lambda: dist.all_gather_into_tensor(b.recv, mine))
        if everywhere
        else (lambda: dist.gather(mine, places, dst=b.root)),
        wrong=wrong,
    )


def _scatter(op: str, b: Buffers, in_place: bool) -> Operation:
    """reduce_scatter and scatter: each rank gets its part of the whole."""
    import torch.distributed as dist

    whole = b.recv if in_place else b.send
    mine = _parts(b.recv, b.ranks)[b.rank if in_place else 0]
    start = mine.numel() * b.rank
    if op == "reduce_scatter":
        redop = reduction(b.redop)
        return Operation(
            fill=lambda: fill_with(whole, values(b.rank, 0)),
            call=lambda: dist.reduce_scatter_tensor(mine, whole, redop),
            wrong=lambda: count_wrong(mine, reduced(b.ranks, start, b.redop), b.ranks),
        )
    parts = _parts(whole, b.ranks) if b.rank == b.root else None
    return Operation(
        fill=lambda: fill_with(whole, values(b.root, 0)) if parts else None,
        call=lambda: dist.scatter(mine, parts, src=b.root),
        wrong=lambda: count_wrong(mine, _exact(b.root, start), b.ranks),
    )


def _all_to_all(b: Buffers) -> Operation:
    import torch.distributed as dist

    start = b.recv.numel() // b.ranks * b.rank
    return Operation(
        fill=lambda: fill_with(b.send, values(b.rank, 0)),
        call=lambda: dist.all_to_all_single(b.recv, b.send),
        wrong=lambda: sum(
            count_wrong(part, _exact(rank, start), b.ranks) for rank, part in enumerate(_parts(b.recv, b.ranks))
        ),
    )


def _sendrecv(b: Buffers) -> Operation:
    """Send from every rank to the next rank, and receive from the previous one."""
    import torch.distributed as dist

    after, before = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks

    def call() -> None:
        if b.ranks == 1:
            b.recv.copy_(b.send)
            return
        pair = [dist.P2POp(dist.isend, b.send, after), dist.P2POp(dist.irecv, b.recv, before)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    return Operation(
        fill=lambda: fill_with(b.send, values(b.rank, 0)),
        call=call,
        wrong=lambda: count_wrong(b.recv, _exact(before, 0), b.ranks),
    )
