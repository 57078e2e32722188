"""Sizes and lists as people read them, for nodes and for everything above."""

from __future__ import annotations

from collections.abc import Sequence


def binary_size(size: float) -> str:
    """`512 MiB`, `1.5 GiB`: powers of 1024, as memory and messages count."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return ("%.3g %s" if size < 1000 else "%.0f %s") % (size, unit)


def listed(words: Sequence[str], limit: int = 6, separator: str = ", ") -> str:
    """`a, b, c and 4 more`."""
    more = len(words) - limit
    return separator.join(words[:limit]) + (" and %d more" % more if more > 0 else "")
