"""Parts of rendered scripts from the file `data/rank.sh`. They are the same in every plan, except for a few values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from windlass.base.tables import packaged_text

_NAME = re.compile(r"@(\w+)@")


def part(name: str, /, **values: str | Sequence[str]) -> list[str]:
    """The lines of a part.

    `@NAME@` in a line is replaced by a value. If it is the whole line, it may become several lines or none.
    """
    lines: list[str] = []
    for line in _parts()[name]:
        alone = _NAME.fullmatch(line)
        value = values[alone[1]] if alone else ""
        if alone and not isinstance(value, str):
            lines += value
        else:
            lines.append(_NAME.sub(lambda found: str(values[found[1]]), line))
    return lines


@lru_cache(maxsize=1)
def _parts() -> dict[str, list[str]]:
    _, *parts = re.split(r"^#: (\w+)\n", packaged_text(__file__, "rank.sh"), flags=re.MULTILINE)
    return {name: text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}
