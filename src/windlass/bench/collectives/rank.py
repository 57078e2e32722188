"""One rank of `bench collectives`: check each collective once, then time it. The first rank sends the rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from windlass.bench.collectives import operations
from windlass.bench.collectives.options import DTYPES, CollectivesOptions, parse_ops
from windlass.bench.messages import ResultWriter
from windlass.bench.options import from_values
from windlass.bench.rank import World, about_torch, guarded, read_world
from windlass.bench.sizes import parse_sizes
from windlass.errors import MachineError
from windlass.node.sys.memory import memory_left
from windlass.node.sys.text import binary_size


def free_bytes(device: Any, local_ranks: int) -> int:
    """Return the free memory of the device. For the CPU, return the node's free memory divided by its ranks."""
    if device.kind == "cpu":
        return memory_left() // max(1, local_ranks)
    import torch

    module: Any = getattr(torch, device.kind)
    try:
        return int(module.mem_get_info()[0])
    except (RuntimeError, AttributeError):  # some XPU drivers do not report it
        return int(device.memory_bytes) - int(module.memory_reserved())


_AUTO = {"cpu": "1K:64M:4", "cuda": "1M:8G:2", "xpu": "1M:8G:2"}
_FEWEST = 3
_SLACK_BYTES = 256 << 20
_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    options: CollectivesOptions
    world: World
    device: Any
    dtype: Any
    out: ResultWriter

    @property
    def element_bytes(self) -> int:
        return int(self.dtype.itemsize)


def main(values: dict[str, Any]) -> int:
    return guarded(lambda out: _work(from_values(CollectivesOptions, values), out))


def _work(options: CollectivesOptions, out: ResultWriter) -> None:
    import torch
    import torch.distributed as dist

    from windlass.bench.train.device import find_device

    world = read_world()
    device = find_device(options.device, world.local_rank)
    backend = options.backend or device.collective
    _join(backend, device)
    try:
        if world.first:
            out.send("about", **about_torch(device, backend))
        dtype = getattr(torch, DTYPES[options.dtype])
        bench = _Bench(options=options, world=world, device=device, dtype=dtype, out=out)
        ops = parse_ops(options.op)
        for op in ops:
            _try(bench, op, backend)
        sizes = parse_sizes(_AUTO[device.kind] if options.sizes == "auto" else options.sizes)
        for number, op in enumerate(ops):
            _measure_op(bench, op, sizes, done=number * len(sizes), total=len(ops) * len(sizes))
        if world.first:
            out.send("end")
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _join(backend: str, device: Any) -> None:
    import torch.distributed as dist

    extra = {} if device.kind == "cpu" or backend == "gloo" else {"device_id": device.torch}
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT_S), **extra)
    except (RuntimeError, ValueError) as error:
        raise MachineError(
            f"the ranks cannot meet through {backend}: {_first_line(error)}",
            hint="more ranks than devices, a wrong interface, or a torch without this backend? see `windlass logs`",
        ) from error


def _try(bench: _Bench, op: str, backend: str) -> None:
    """Make a tiny call of the op, so that a backend without it fails now, before anything is measured."""
    import torch

    send, recv = (torch.zeros(64 * bench.world.size, dtype=bench.dtype, device=bench.device.torch) for _ in range(2))
    setting = _setting(bench, send, recv)
    made = operations.make_operation(op, "out-of-place", setting)
    assert made is not None
    try:
        made.fill()
        made.call()
        made.wrong()
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        what = f"{op} of {bench.options.dtype}"
        what += f" with {bench.options.redop}" if op in {"all_reduce", "reduce", "reduce_scatter"} else ""
        raise MachineError(
            f"{backend} has no {what}: {_first_line(error)}", hint="leave it out of --op, or try another --backend"
        ) from error


def _setting(bench: _Bench, send: Any, recv: Any) -> operations.Buffers:
    return operations.Buffers(
        rank=bench.world.rank,
        ranks=bench.world.size,
        root=bench.options.root % bench.world.size,
        redop=bench.options.redop,
        send=send,
        recv=recv,
    )


def _measure_op(bench: _Bench, op: str, sizes: tuple[int, ...], *, done: int, total: int) -> None:
    import torch

    world, first = bench.world, bench.world.first
    room = _agreed_least(bench, free_bytes(bench.device, world.local_size))
    # Two buffers, and on the CPU a third one inside the backend (gloo copies the data that it scatters and gathers).
    buffers = 3 if bench.device.kind == "cpu" else 2
    fitting = [size for size in sizes if buffers * size + _SLACK_BYTES <= room]
    for size in sizes:
        if size not in fitting and first:
            need = binary_size(buffers * size + _SLACK_BYTES)
            bench.out.send(
                "skipped",
                text=f"{op} of {binary_size(size)}: needs {need} per rank, {binary_size(room)} are free",
            )
    if not fitting:
        return
    most = operations.share(op, max(fitting) // bench.element_bytes, world.size, bench.element_bytes)[0]
    send, recv = (torch.zeros(max(most, 1), dtype=bench.dtype, device=bench.device.torch) for _ in range(2))
    for number, size in enumerate(fitting):
        held, named = operations.share(op, size // bench.element_bytes, world.size, bench.element_bytes)
        if held == 0:
            if first:
                bench.out.send(
                    "skipped",
                    text=f"{op} of {binary_size(size)}: less than 16 bytes for each of {world.size} ranks",
                )
            continue
        for placement in operations.PLACEMENTS:
            if first:
                text = f"{op} {binary_size(size)} {placement}"
                bench.out.send("progress", text=text, done=done + number, total=total)
            made = operations.make_operation(op, placement, _setting(bench, send[:held], recv[:held]))
            if made is not None:
                _measure(bench, op, placement, made, size=held * bench.element_bytes, count=named)


def _measure(
    bench: _Bench, op: str, placement: operations.Placement, made: operations.Operation, *, size: int, count: int
) -> None:
    import torch.distributed as dist

    from windlass.bench.train.device import StepClock

    wrong: int | None = None
    if not bench.options.no_check:
        made.fill()
        dist.barrier()
        made.call()
        wrong = int(_summed(bench, [float(made.wrong())])[0])
    made.fill()
    for _ in range(max(1, bench.options.warmup) - 1):
        made.call()
    clock = StepClock(bench.device)
    clock.mark()
    made.call()
    clock.mark()
    slowest = -_agreed_least(bench, -clock.intervals_s()[0])
    iters = max(
        min(_FEWEST, bench.options.iters),
        min(bench.options.iters, int(bench.options.most_seconds / max(slowest, 1e-9))),
    )
    dist.barrier()
    clock = StepClock(bench.device)
    clock.mark()
    for _ in range(iters):
        made.call()
        clock.mark()
    # Six digits of a time exceed the accuracy of every clock used here, and the message lines stay short.
    means = (value / bench.world.size for value in _summed(bench, list(clock.intervals_s())))
    samples = [float(f"{mean:.6g}") for mean in means]
    if bench.world.first:
        reduces = op in {"all_reduce", "reduce", "reduce_scatter"}
        rooted = op in {"broadcast", "reduce", "gather", "scatter"}
        bench.out.send(
            "row",
            op=op,
            bytes=size,
            count=count,
            type=bench.options.dtype,
            redop=bench.options.redop if reduces else "none",
            root=bench.options.root % bench.world.size if rooted else -1,
            placement=placement,
            time_s=samples,
            wrong=wrong,
        )


def _summed(bench: _Bench, numbers: list[float]) -> list[float]:
    return [float(value) for value in _all(bench, numbers, "SUM")]


def _agreed_least(bench: _Bench, number: float) -> float:
    return float(_all(bench, [number], "MIN")[0])


def _all(bench: _Bench, numbers: list[float], how: str) -> list[float]:
    import torch
    import torch.distributed as dist

    wide = torch.float32 if bench.device.kind == "xpu" else torch.float64
    tensor = torch.tensor(numbers, dtype=wide, device=bench.device.torch)
    dist.all_reduce(tensor, getattr(dist.ReduceOp, how))
    return [float(value) for value in tensor.tolist()]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
