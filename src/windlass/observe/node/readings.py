"""What the samplers read: one device, and small readings of files that may not be there. Standard library alone."""

from __future__ import annotations

import os
import subprocess
from typing import Any, NamedTuple

COMMAND_S = 15.0
MIB = 1 << 20


class Device(NamedTuple):
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


class MissingError(Exception):
    """This source is not here, or does not answer; the text says why."""


def read_text(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def read_number(path: str) -> float | None:
    """The first word of a file as a number: `1234`, `212 W 17 us` and `99@1700000000.5` are what kernels write."""
    text = read_text(path)
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


def output_of(*argv: str) -> str:
    """What a tool says; `MissingError` where it is not there, fails or takes too long."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError("%s: %s" % (argv[0], error)) from None
    if done.returncode:
        last = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise MissingError("%s: code %d%s" % (argv[0], done.returncode, ": " + last[-1][:200] if last else ""))
    return done.stdout.decode(errors="replace")
