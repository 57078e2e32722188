"""Cases that take turns: all of them once in every round, so that a busy minute hurts all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windlass.base.notation.counts import counted


class NotMeasuredError(Exception):
    """The case cannot be measured here; the text says why."""


def in_rounds(
    order: Sequence[tuple[str, int]], repeat: int, tell: Callable[[str], None], one: Callable[[str, int], None]
) -> dict[tuple[str, int], str]:
    """Measure all cases and sizes one after the other in every round, so that a busy minute hurts all of them alike.
    Returns why some cannot be measured."""
    missing: dict[tuple[str, int], str] = {}
    for turn in range(repeat):
        for case, nodes in order:
            if (case, nodes) in missing:
                continue
            tell(f"round {turn + 1} of {repeat}: {case} on {counted(nodes, 'node')}")
            try:
                one(case, nodes)
            except NotMeasuredError as error:
                missing[case, nodes] = str(error)
    return missing
