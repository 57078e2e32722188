"""Convert a record of an early form (training and matmul programs, `bench/start.py`) to the form of `windlass bench`.

python bench/older_record.py results/h200/matmul.json matmul.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from startup.rows import start_record
from windlass.bench.matmul.rows import matmul_measurement
from windlass.bench.record import BenchRecord, Where, new_record, write_record
from windlass.bench.train.rows import train_measurement


def older_record(kind: str, raw: Mapping[str, Any]) -> BenchRecord:
    """The record that `raw` holds. Raises `KeyError`, `TypeError` or `ValueError` where something is missing."""
    return OLDER[kind](raw)


def _trained(raw: Mapping[str, Any]) -> BenchRecord:
    return _of_program(str(raw["case"]), raw, rows=(train_measurement(raw, nodes=1),))


def _multiplied(raw: Mapping[str, Any]) -> BenchRecord:
    return _of_program("matmul", raw, rows=tuple(matmul_measurement(one) for one in raw["results"]))


def _of_program(case: str, raw: Mapping[str, Any], **values: Any) -> BenchRecord:
    return new_record(
        case,
        command=tuple(raw.get("command", ())),
        windlass=raw["software"].get("windlass") or "",
        commit=raw["software"].get("commit"),
        where=Where(ranks_per_node=int(raw.get("ranks", 1))),
        device=raw["device"],
        software=raw["software"],
        options=raw.get("options", {}),
        skipped=tuple(raw.get("skipped", ())),
        remarks=tuple(raw.get("loss_problems", ())),
        **values,
    )


def _started(raw: Mapping[str, Any]) -> BenchRecord:
    kept = ("import", "limits", "bytes", "link_bits_per_s", "repeat")
    options = {name: raw[name] for name in kept if raw.get(name) is not None}
    return start_record(raw["rows"], options=options, machine=raw["machine"], started=str(raw.get("when", "")))


OLDER: dict[str, Callable[[Mapping[str, Any]], BenchRecord]] = {
    "windlass.bench.train": _trained,
    "windlass.bench.matmul": _multiplied,
    "bench start": _started,
    "bench start --push": _started,
}


def main(old: str, new: str) -> None:
    raw = json.loads(Path(old).read_text())
    write_record(Path(new), older_record(raw.get("record") or raw["what"], raw))


if __name__ == "__main__":
    main(*sys.argv[1:])
