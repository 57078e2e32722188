"""Format sizes, lists and CPU lists (`0-3,8`, as the kernel writes them)."""

from __future__ import annotations

import re
from collections.abc import Sequence


def binary_size(size: float) -> str:
    """Return a size such as `512 MiB` or `1.5 GiB`, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return ("%.3g %s" if size < 1000 else "%.0f %s") % (size, unit)


def listed(words: Sequence[str], limit: int = 6, separator: str = ", ") -> str:
    """Return a list such as `a, b, c and 4 more`."""
    more = len(words) - limit
    return separator.join(words[:limit]) + (" and %d more" % more if more > 0 else "")


LARGEST_CPU = 65535
_NUMBER = re.compile(r"[0-9]{1,18}\Z")


class CpuListError(ValueError):
    """A text that is not a CPU list. The message has the mistake and the correct form."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def cpus_of(text: str) -> tuple[int, ...]:
    """Return the sorted numbers of a CPU list. Empty text means no CPU. Raises `CpuListError`."""
    cpus: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        last, _, stride = last.partition(":")
        numbers = (first, *((last,) if dash else ()), *((stride,) if stride else ()))
        if not all(_NUMBER.match(number) for number in numbers):
            raise CpuListError(f"not a CPU list: {text[:80]!r}", "write numbers and ranges, as in 0-3,8")
        low, high = int(first), int(last) if dash else int(first)
        if max(low, high) > LARGEST_CPU:
            raise CpuListError(f"no node has a CPU {max(low, high)}: {part!r}", f"numbers end at {LARGEST_CPU}")
        if high < low or (stride and int(stride) == 0):
            raise CpuListError(f"not a CPU range: {part!r} in {text!r}", "ranges go up, as in 0-3")
        cpus.update(range(low, high + 1, int(stride) if stride else 1))
    return tuple(sorted(cpus))
