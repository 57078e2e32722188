"""Parse sizes: `64M`, `1K,1M,1G`, `1M:8G:2` (begin, end, factor), `1M:4M:+1M` (begin, end, step)."""

from __future__ import annotations

import re

from windlass.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_HINT = "write 64M, a list (1K,1M), begin:end:factor (1M:8G:2) or begin:end:+step (1M:4M:+1M)"
MAX_SIZES = 4096


def parse_size(text: str) -> int:
    """Return the bytes of one size. K, M, G and T are powers of 1024, as in nccl-tests."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"{text!r} is not a size", hint=_HINT)
    size = float(match.group(1)) * _UNITS[match.group(2).upper()]
    if size < 1 or size != int(size):
        raise UsageError(f"{text!r} is not a whole number of bytes, 1 or more", hint=_HINT)
    return int(size)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return all sizes of a list or range, smallest first and each once. Raises `UsageError` for other text."""
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_range(part) if ":" in part else (parse_size(part),))
    if len(sizes) > MAX_SIZES:
        raise UsageError(f"{text!r} are {len(sizes)} sizes", hint=f"at most {MAX_SIZES} are measured in one go")
    return tuple(sorted(sizes))


def _range(text: str) -> list[int]:
    fields = text.split(":")
    if len(fields) not in (2, 3):
        raise UsageError(f"{text!r} is not a range of sizes", hint=_HINT)
    begin, end = parse_size(fields[0]), parse_size(fields[1])
    if end < begin:
        raise UsageError(f"{text!r} ends before it begins", hint=_HINT)
    step = fields[2].strip() if len(fields) == 3 else "2"
    sizes = [begin]
    if step.startswith("+"):
        by = parse_size(step[1:])
        return list(range(begin, end + 1, by))[: MAX_SIZES + 1]
    try:
        factor = float(step)
    except ValueError:
        raise UsageError(f"{text!r}: {step!r} is not a factor", hint=_HINT) from None
    if not 1.001 <= factor <= 1e6:
        raise UsageError(f"{text!r}: the factor must be more than 1", hint=_HINT)
    while (following := max(int(sizes[-1] * factor), sizes[-1] + 1)) <= end:
        sizes.append(following)
    return sizes
