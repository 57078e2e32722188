"""Words of a command line from the tables in `data`: examples, synonyms, and names that no longer exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from windlass.base.tables import packaged_table
from windlass.errors import UsageError


def examples_text(command: str) -> str:
    """The end of a command's help."""
    examples = packaged_table(__file__, "examples.toml")[command]
    # Four blanks: two are what an option of the help begins with. What a line does stands above it, as a comment.
    return "\n".join(["examples:", *(f"    # {what}\n    {line}" for line, what in examples.items())])


def synonym_of(kind: Literal["commands", "options"], word: str) -> str | None:
    """What windlass calls a command or option that people know by this name."""
    table = packaged_table(__file__, "synonyms.toml")[kind]
    return next((ours for ours, words in table.items() if word in words), None)


def refuse_removed(command: str, words: Sequence[str]) -> None:
    """Raise `UsageError` with the replacement where a word names something that was removed from `command`, which is a
    command (`plan`) or one with its sub-command (`bench ddp`)."""
    table = packaged_table(__file__, "removed.toml")
    name, _, sub = command.partition(" ")
    for word in words:
        option = word.partition("=")[0]
        instead = table.get(name, {}).get(f"{sub} {option}".strip()) or table["all"].get(option)
        if instead is not None:
            raise UsageError(f"windlass {command} {option} was removed", hint=instead)
