"""Lists of ranks as people write them: `0,3-5`."""

from __future__ import annotations

import re

from windlass.errors import UsageError

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
