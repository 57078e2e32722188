"""CPU numbers as the kernel and the schedulers write them: lists (`0-3,8`) and hexadecimal masks.

Lists of ranks as people write them: `0,3-5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from windlass.errors import ConfigError, UsageError
from windlass.node.sys.text import CpuListError, cpus_of


def parse_cpulist(text: str) -> tuple[int, ...]:
    """`"0-3,8"` as sorted numbers. Empty text is no CPU; anything else that does not parse is a `ConfigError`."""
    try:
        return cpus_of(text)
    except CpuListError as error:
        raise ConfigError(str(error), hint=error.hint) from None


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


MAX_RANKS = 100_000
_PART = re.compile(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*\Z")


def parse_ranks(text: str, flag: str, *, world_size: int | None = None, words: str = "all") -> tuple[int, ...]:
    """The ranks of a list, in its order. `UsageError` for what is no list, for a range that goes down or begins beyond
    `world_size` (it may end there), and for more ranks than a list can name."""
    ranks: list[int] = []
    for part in text.split(","):
        match = _PART.match(part)
        if match is None:
            raise UsageError(f"{flag} {text[:80]!r}: not a list of ranks", hint=f"give {words}, or numbers as in 0,3-5")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise UsageError(f"{flag} {text[:80]!r}: {part[:80]!r} is no range", hint="ranges go up, as in 3-5")
        if world_size is not None:
            if low >= world_size:
                raise UsageError(
                    f"{flag} {text[:80]!r}: the run has ranks 0 to {world_size - 1}", hint="e.g. 0, 0,3-5 or all"
                )
            high = min(high, world_size - 1)
        if len(ranks) + high - low >= MAX_RANKS:
            raise UsageError(f"{flag} {text[:80]!r}: more than {MAX_RANKS} ranks", hint="give all for every rank")
        ranks.extend(range(low, high + 1))
    return tuple(ranks)
