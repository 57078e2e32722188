"""torch's flight recorder: find the rank that is missing from a collective, using the dumps of the ranks.

torch writes one pickle per rank, with plain values only. Unpickling can run code, so only plain values are accepted.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import msgspec

from windlass.node.sys.reading import read_bytes

_MAX_BYTES = 256 << 20
_MAX_CHARS = 200


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """The last collective of one rank in one group."""

    rank: int
    group: str
    number: int
    name: str
    state: str


class _PlainOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a flight record")


def read_dump(path: Path) -> dict[str, Any] | None:
    """Return one rank's dump, or None if it is incomplete or contains anything but plain values."""
    try:
        found = _PlainOnly(io.BytesIO(read_bytes(path, _MAX_BYTES, within=path.parents[1]))).load()
    except Exception:  # an incomplete pickle can raise almost any error, and a dump must not prevent the report
        return None
    return found if isinstance(found, dict) else None


def last_collectives(folder: Path) -> tuple[Last, ...]:
    """Return the newest entry of every rank and group in a folder of dumps (`rank_0`, `rank_0-other`, `rank_1`, …)."""
    found: dict[tuple[int, str], Last] = {}
    if not folder.is_dir():
        return ()
    for path in folder.iterdir():
        match = re.fullmatch(r"rank_(\d+)(?:-other)?", path.name)
        dump = read_dump(path) if match else None
        if match is None or dump is None:
            continue
        entries = dump.get("entries")
        for entry in entries if isinstance(entries, (list, tuple)) else ():
            one = _last(int(match.group(1)), entry)
            if one is None:
                continue
            old = found.get((one.rank, one.group))
            if old is None or one.number >= old.number:
                found[one.rank, one.group] = one
    return tuple(sorted(found.values(), key=lambda one: (one.group, one.rank)))


def _last(rank: int, entry: Any) -> Last | None:
    if not isinstance(entry, dict) or entry.get("is_p2p"):
        return None
    number = entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(number, int) or not 0 <= number < 1 << 63:
        return None
    group = entry.get("process_group", entry.get("pg_name", ""))
    parts = group if isinstance(group, (tuple, list)) else (group,)
    return Last(
        rank=rank,
        group=" ".join(_word(part) for part in parts[:4]),  # name and description, which is often "undefined"
        number=number,
        name=_word(entry.get("profiling_name")) or "a collective",
        state=_word(entry.get("state")),
    )


def _word(value: Any) -> str:
    """Return a short text or number of a dump. Any other value gives an empty string."""
    if isinstance(value, int) and abs(value) < 1 << 63:
        return str(value)
    return "".join(char if char.isprintable() else "?" for char in value[:_MAX_CHARS]) if isinstance(value, str) else ""


def missing(folder: Path, world_size: int) -> tuple[str, tuple[int, ...]]:
    """Return a message such as `rank 2 is missing from nccl:all_reduce number 17 (it did 16)`, and these ranks.

    Both are empty if the dumps are not conclusive. If a rank has no dump, the ranks that are behind may only be waiting
    for it, so they are not named.
    """
    last = last_collectives(folder)
    groups = sorted({one.group for one in last})
    parts: list[str] = []
    ranks: set[int] = set()
    for group in groups:
        mine = [one for one in last if one.group == group]
        furthest = max(mine, key=lambda one: one.number)
        place = f"{furthest.name} number {furthest.number}"
        silent = sorted(set(range(world_size)) - {one.rank for one in mine}) if len(groups) == 1 else []
        if silent:
            listed = ", ".join(str(rank) for rank in silent[:8])
            parts.append(f"no flight record of rank {listed}; the others wait in {place}")
            continue
        behind = [one for one in mine if one.number < furthest.number]
        ranks.update(one.rank for one in behind)
        parts += [f"rank {one.rank} is missing from {place} (it did {one.number})" for one in behind[:8]]
    return "; ".join(parts), tuple(sorted(ranks))
