"""One rank of `bench matmul`: matrix products in every type of the device."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from windlass.bench.matmul.options import MatmulOptions
from windlass.bench.matmul.product import default_side, measure_matmul
from windlass.bench.messages import ResultWriter
from windlass.bench.options import from_values
from windlass.bench.rank import about_torch, guarded, read_world
from windlass.errors import MachineError


def main(values: dict[str, Any]) -> int:
    return guarded(lambda out: _work(from_values(MatmulOptions, values), out))


def _work(options: MatmulOptions, out: ResultWriter) -> None:
    from windlass.bench.train.device import find_device

    world = read_world()
    device = find_device(options.device, world.local_rank)
    if world.first:
        out.send("about", **about_torch(device, None))
    kinds: list[Any] = options.types.split(",")
    side = default_side(device, options.size)
    for number, kind in enumerate(kinds):
        out.send("progress", text=f"{kind} {side}x{side}x{side}", done=number, total=len(kinds))
        try:
            found = measure_matmul(kind, (side, side, side), device=device.kind, seconds=options.seconds)
        except (MachineError, RuntimeError, NotImplementedError) as error:
            reason = error.message if isinstance(error, MachineError) else str(error).splitlines()[0]
            if world.first:
                out.send("skipped", text=f"{kind}: {reason}")
            continue
        result = asdict(found) | {"burst": asdict(found.burst), "sustained": asdict(found.sustained)}
        out.send("row", rank=world.rank, result=result)
    if world.first:
        out.send("end")
