"""What samplers and checks read: one device, and small readings of files and tools that may not be there. Standard
library alone."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from windlass.node.sys.tools import MissingError, text_of

MIB = 1 << 20


class DeviceReading(NamedTuple):
    """One accelerator at one moment. None: nobody says."""

    place: int
    """Its number on the node."""
    busy: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    throttled: bool | None = None
    """The clock is lowered for heat, power or a fault; a power cap is what a busy device shows."""
    name: str = ""
    driver: str = ""
    uncorrected: int | None = None
    """Memory errors that could not be corrected, since the driver was loaded."""
    throttle_reasons: tuple[str, ...] = ()
    unverified: bool = False
    """Its reader has never run on such a device: no captured output of its tool is in the tests."""
    needs_reset: bool = False
    """Rows of memory wait for a reset of the device to be replaced, or could not be."""


def read_number(path: str) -> float | None:
    """The first word of a file as a number: `1234`, `212 W 17 us` and `99@1700000000.5` are what kernels write."""
    text = text_of(path)
    return number(text.split()[0].partition("@")[0]) if text else None


def number(text: Any) -> float | None:
    """A number as tools write it, with or without a unit behind it; None for `N/A` and its many spellings."""
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
    """The JSON value in what a tool said, which may begin with a warning; None where there is none at all, and
    `MissingError` where it is torn."""
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
    """A part of an answer; tools write `N/A` for one that a device does not have."""
    part = entry.get(name) if isinstance(entry, dict) else None
    return part if isinstance(part, dict) else {}
