"""CPU numbers as the kernel and the schedulers write them: lists (`0-3,8`) and hexadecimal masks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from windlass.errors import ConfigError

_LARGEST_CPU = 65535
_NUMBER = re.compile(r"[0-9]{1,18}\Z")


def parse_cpulist(text: str) -> tuple[int, ...]:
    """`"0-3,8"` as sorted numbers. Empty text is no CPU; anything else that does not parse is a `ConfigError`."""
    cpus: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        last, _, stride = last.partition(":")
        numbers = (first, *((last,) if dash else ()), *((stride,) if stride else ()))
        if not all(_NUMBER.match(number) for number in numbers):
            raise ConfigError(f"not a CPU list: {text[:80]!r}", hint="write numbers and ranges, as in 0-3,8")
        low, high = int(first), int(last) if dash else int(first)
        if max(low, high) > _LARGEST_CPU:
            raise ConfigError(f"no node has a CPU {max(low, high)}: {part!r}", hint=f"numbers end at {_LARGEST_CPU}")
        if high < low or (stride and int(stride) == 0):
            raise ConfigError(f"not a CPU range: {part!r} in {text!r}", hint="ranges go up, as in 0-3")
        cpus.update(range(low, high + 1, int(stride) if stride else 1))
    return tuple(sorted(cpus))


def format_cpulist(cpus: Iterable[int]) -> str:
    """Numbers as the shortest list of ranges, ascending: `0-3,8`."""
    parts: list[str] = []
    run: list[int] = []
    for cpu in [*sorted(set(cpus)), None]:
        if run and (cpu is None or cpu != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if cpu is not None:
            run.append(cpu)
    return ",".join(parts)


def cpu_mask(cpus: Iterable[int], *, digits: int = 0) -> str:
    """A hexadecimal mask as Slurm takes it: `0xfe` for CPUs 1-7, padded with zeros to `digits`."""
    value = 0
    for cpu in cpus:
        value |= 1 << cpu
    return f"0x{value:0{digits}x}"


def parse_bindings(text: str) -> tuple[tuple[int, ...], ...]:
    """`"4-7:8-11"`, one list per local rank separated by colons, as `--cpu-bind=list:` of PALS takes it."""
    return tuple(parse_cpulist(part) for part in text.split(":"))


def format_bindings(bindings: Iterable[Iterable[int]]) -> str:
    """The reverse of `parse_bindings`."""
    return ":".join(format_cpulist(cpus) for cpus in bindings)
