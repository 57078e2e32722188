"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import re

from windlass.errors import UsageError


def parse_size(text: str, what: str) -> int:
    """Bytes of `512M`, `2G` or a plain number; powers of 1024. Anything else is a `UsageError` that names `what`."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{what} {text[:80]!r} is not a size", hint="write 512M or 2G")
    return int(float(match.group(1)) * 1024 ** " KMGT".index(match.group(2).upper() or " "))


def size_text(count: float) -> str:
    """`512 B`, `2.5 MB`: three figures and a unit; powers of 1000, as storage and networks count."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"
