"""Parse and format counts, sizes, durations, rank lists and CPU lists.

Counts per node use Slurm's format (`2(x3),1`). CPU lists use the format of Linux (`0-3,8`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from windlass.errors import ConfigError, UsageError
from windlass.node.sys.text import CpuListError, cpus_of


def parse_cpulist(text: str) -> tuple[int, ...]:
    """Return the sorted numbers of `"0-3,8"`. Empty text means no CPU. Raises `ConfigError` for invalid text."""
    try:
        return cpus_of(text)
    except CpuListError as error:
        raise ConfigError(str(error), hint=error.hint) from None


def format_cpulist(cpus: Iterable[int]) -> str:
    """Format numbers as the shortest ascending list of ranges: `0-3,8`."""
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
    """Return the hexadecimal mask that Slurm accepts: `0xfe` for CPUs 1-7, zero-padded to `digits`."""
    value = 0
    for cpu in cpus:
        value |= 1 << cpu
    return f"0x{value:0{digits}x}"


def parse_bindings(text: str) -> tuple[tuple[int, ...], ...]:
    """Parse `"4-7:8-11"`: one CPU list per local rank, separated by colons, as for `--cpu-bind=list:` of PALS."""
    return tuple(parse_cpulist(part) for part in text.split(":"))


def format_bindings(bindings: Iterable[Iterable[int]]) -> str:
    """The reverse of `parse_bindings`."""
    return ":".join(format_cpulist(cpus) for cpus in bindings)


MAX_RANKS = 100_000
_PART = re.compile(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*\Z")


def parse_ranks(text: str, flag: str, *, world_size: int | None = None, words: str = "all") -> tuple[int, ...]:
    """Return the ranks of a list, in its order.

    Raises `UsageError` for text that is not a list, for a range that goes down or begins beyond `world_size` (it may
    end there), and for more than `MAX_RANKS` ranks.
    """
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


_MAX_NODES = 1_000_000
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?\Z")


def counted(count: object, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parse_counts(text: str, what: str = "tasks of each node") -> tuple[int, ...]:
    """Parse `2(x3),1` as (2, 2, 2, 1): one number per node, in Slurm's format. Raises `UsageError` for other text."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.match(part.strip())
        if match is None:
            raise UsageError(f"{what}: not a list of counts: {text[:80]!r}", hint="Slurm writes it as in 2(x3),1")
        times = int(match[2] or 1)
        if len(counts) + times > _MAX_NODES:
            raise UsageError(f"{what}: more than {_MAX_NODES} nodes: {text[:80]!r}", hint="give fewer")
        counts.extend([int(match[1])] * times)
    return tuple(counts)


def local_time(at: float, pattern: str) -> str:
    """Format a point in time in the local time zone. Returns `?` for a time outside the calendar's range."""
    try:
        return time.strftime(pattern, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"


def parse_size(text: str, what: str) -> int:
    """Return the bytes of `512M`, `2G` or a plain number, in powers of 1024. The `UsageError` names `what`."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{what} {text[:80]!r} is not a size", hint="write 512M or 2G")
    return int(float(match.group(1)) * 1024 ** " KMGT".index(match.group(2).upper() or " "))


def size_text(count: float) -> str:
    """Format a size with one decimal and a unit: `512 B`, `2.5 MB`. Powers of 1000, as for storage and networks."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def duration_text(seconds: float | None) -> str:
    """`12.3 s`, `4 min 05 s`, `3 h 07 min`."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60):02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
