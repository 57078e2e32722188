"""Tables of command-line names in `data`: examples, synonyms, and names that no longer exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from windlass.base.tables import packaged_table
from windlass.errors import UsageError


def examples_text(command: str) -> str:
    """The examples in a command's help."""
    examples = packaged_table(__file__, "examples.toml")[command]
    # Four spaces, because options of the help start with two. The description of each line is a comment above it.
    return "\n".join(["examples:", *(f"    # {what}\n    {line}" for line, what in examples.items())])


def synonym_of(kind: Literal["commands", "options"], word: str) -> str | None:
    """The name in windlass of a command or option that users call by this word."""
    table = packaged_table(__file__, "synonyms.toml")[kind]
    return next((ours for ours, words in table.items() if word in words), None)


def refuse_removed(command: str, words: Sequence[str]) -> None:
    """Raise `UsageError` with the replacement if an argument was removed from `command`.

    `command` is a command (`plan`) or one with its sub-command (`bench ddp`).
    """
    table = packaged_table(__file__, "removed.toml")
    name, _, sub = command.partition(" ")
    for word in words:
        option = word.partition("=")[0]
        instead = table.get(name, {}).get(f"{sub} {option}".strip()) or table["all"].get(option)
        if instead is not None:
            raise UsageError(f"windlass {command} {option} was removed", hint=instead)
