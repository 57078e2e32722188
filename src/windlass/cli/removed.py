"""Commands and options of earlier versions that no longer exist, each with its replacement."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.errors import UsageError

_REPORT = "windlass bench report RECORD --html FILE"
_PUSH = "in a checkout of windlass: python bench/push.py SIZE --link RATE"
_SIMULATE = "in a checkout of windlass: python bench/simulate_start.py --from RECORD"
# By command: a sub-command, or an option (of every sub-command, or after "SUB "), and what to use instead.
_REMOVED = {
    "bench": {
        "synthetic": "windlass bench ddp --batch 96 --fp16-allreduce",
        "start --push": _PUSH,
        "start --link": _PUSH,
        "start --simulate": _SIMULATE,
        "start --from": _SIMULATE,
        "collectives --html": _REPORT,
        "matmul --html": _REPORT,
        "ddp --html": _REPORT,
        "llm --html": _REPORT,
        "io --html": _REPORT,
        "scale --html": _REPORT,
        "compare --html": _REPORT,
        "reference --html": _REPORT,
    },
    "image": {"plan --site": "windlass image check IMAGE --site NAME; the recipe is the same for all sites"},
}


def refuse_removed(command: str, argv: Sequence[str]) -> None:
    """Raise `UsageError` with the replacement where `argv` names something that was removed."""
    sub, *words = argv or ("",)
    for name in (sub, *(f"{sub} {word.partition('=')[0]}" for word in words)):
        instead = _REMOVED.get(command, {}).get(name)
        if instead is not None:
            raise UsageError(f"windlass {command} {name} was removed", hint=f"use {instead}")
