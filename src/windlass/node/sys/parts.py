"""Values that travel through a launcher's output: packed, in numbered parts that each fit into a short line.

Slurm hands output on in pieces of 1,024 bytes and mixes those of two tasks, so no line may be longer.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

_PIECE = 800


def parts_of(value: Any) -> list[dict[str, Any]]:
    """At least one part; `join_parts` makes the value of them again."""
    packed = base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)).decode()
    pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
    return [{"part": index, "parts": len(pieces), "packed": piece} for index, piece in enumerate(pieces)]


def part_lines(value: Any, mark: str = "", **about: Any) -> list[str]:
    """The parts as lines of JSON behind a mark, each with what `about` says; without the ends of lines."""
    return [mark + json.dumps({**about, **part}, separators=(",", ":")) for part in parts_of(value)]


def join_parts(parts: Sequence[Mapping[str, Any]]) -> Any:
    """The value, whatever the order of its parts. Raises `ValueError` where one is missing or torn."""
    known = {part.get("part"): part.get("packed") for part in parts}
    try:
        count = int(parts[0]["parts"])
        packed = "".join(str(known[index]) for index in range(count))
        return json.loads(zlib.decompress(base64.b64decode(packed)))
    except (KeyError, IndexError, TypeError, ValueError, zlib.error) as error:
        raise ValueError("a part is missing or torn") from error
