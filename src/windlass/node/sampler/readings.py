"""The reading of one device, and helpers for files and tools that may be missing. Standard library only."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from windlass.node.sys.tools import MissingError, text_of

MIB = 1 << 20


class DeviceReading(NamedTuple):
    """One accelerator at one moment. None: unknown."""

    place: int
    """Its number on the node."""
    busy: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    throttled: bool | None = None
    """The clock is lowered for heat, power or a fault. A power cap is normal for a busy device and does not count."""
    name: str = ""
    driver: str = ""
    uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    throttle_reasons: tuple[str, ...] = ()
    unverified: bool = False
    """The reader has never run on such a device. The tests have no captured output of its tool."""
    needs_reset: bool = False
    """Memory rows wait for a device reset to be remapped, or could not be remapped."""


def read_number(path: str) -> float | None:
    """Return the first field of a file as a number. Kernels write `1234`, `212 W 17 us` and `99@1700000000.5`."""
    text = text_of(path)
    return number(text.split()[0].partition("@")[0]) if text else None


def number(text: Any) -> float | None:
    """Parse a tool's number with or without a unit. None for `N/A` and its many spellings."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    if isinstance(text, dict):
        return number(text.get("value"))
    if not isinstance(text, str):
        return None
    word = text.strip().strip("()").split(" ")[0]
    for unit in ("Mhz", "MHz", "W", "%", "C"):
        if word.endswith(unit):
            word = word[: -len(unit)]
    try:
        return float(word)
    except ValueError:
        return None


def whole(value: float | None, scale: float = 1.0) -> int | None:
    return None if value is None else int(value * scale)


def share(value: float | None) -> float | None:
    return None if value is None else value / 100.0


def listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def json_of(text: str, tool: str) -> Any:
    """Return the JSON value in a tool's output, which may begin with a warning.

    None if there is no JSON at all. Raises `MissingError` if it is truncated.
    """
    begins = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    for at in begins:
        try:
            return json.loads(text[at:])
        except ValueError:
            continue
    if begins:
        raise MissingError("%s: its output is no JSON" % tool)
    return None


def part_of(entry: Any, name: str) -> dict[str, Any]:
    """Return a part of an answer. Tools write `N/A` for a part that a device does not have."""
    part = entry.get(name) if isinstance(entry, dict) else None
    return part if isinstance(part, dict) else {}
