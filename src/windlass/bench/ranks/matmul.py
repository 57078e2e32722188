"""One rank of `bench matmul`: matrix products in every type the device has."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from windlass.bench.lines import Teller
from windlass.bench.ranks.program import about_torch, guarded, my_place
from windlass.errors import MachineError


def main(argv: Sequence[str]) -> int:
    return guarded(_work, argv)


def _work(argv: Sequence[str], teller: Teller) -> None:
    parser = argparse.ArgumentParser(prog="matmul")
    parser.add_argument("--types", default="")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--device")
    args = parser.parse_args(argv)
    from windlass.bench.matmul import TYPES, measure_matmul
    from windlass.bench.train.device import find_device

    place = my_place()
    device = find_device(args.device, place.local_rank)
    if place.first:
        teller.tell("about", **about_torch(device, None))
    kinds: Any = args.types.split(",") if args.types else TYPES
    side = args.size or (8192 if device.kind != "cpu" else 1024)
    for at, kind in enumerate(kinds):
        teller.tell("progress", text=f"{kind} {side}x{side}x{side}", done=at, total=len(kinds))
        try:
            found = measure_matmul(kind, (side, side, side), device=device.kind, seconds=args.seconds)
        except (MachineError, RuntimeError, NotImplementedError) as error:
            reason = error.message if isinstance(error, MachineError) else str(error).splitlines()[0]
            if place.first:
                teller.tell("skipped", text=f"{kind}: {reason}")
            continue
        values = asdict(found) | {"burst": asdict(found.burst), "sustained": asdict(found.sustained)}
        teller.tell("row", rank=place.rank, result=values)
    if place.first:
        teller.tell("end")
